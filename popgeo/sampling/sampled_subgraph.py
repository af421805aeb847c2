"""The result of a sampler: nodes of a large graph, renumbered with the seeds first, and edges between them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

EdgeType = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SampledSubgraph:
    """A sample of one graph. Fields have the names of PyTorch Geometric's `SamplerOutput`.

    Args:
        node: Nodes of the large graph: the seeds in the given order, then the nodes of each hop. int64 [num_nodes]
        row: Source of each edge, a place in `node`. int64 [num_edges]
        col: Destination of each edge, a place in `node`. int64 [num_edges]
        edge: The number of each edge in the large graph's `edge_index`. int64 [num_edges]
        num_sampled_nodes: The number of nodes of each hop; hop 0 is the seeds. num_hops + 1 numbers
        num_sampled_edges: The number of edges of each hop; None if edges are not in order of hops. num_hops numbers
        batch: The seed of each node, if each seed has a separate tree; otherwise None. int64 [num_nodes]
    """

    node: Tensor
    row: Tensor
    col: Tensor
    edge: Tensor
    num_sampled_nodes: tuple[int, ...]
    num_sampled_edges: tuple[int, ...] | None
    batch: Tensor | None

    @property
    def num_seeds(self) -> int:
        """The number of seeds, which are the first nodes."""
        return self.num_sampled_nodes[0]

    @property
    def edge_index(self) -> Tensor:
        """Source and destination of each edge as places in `node`, int64 [2, num_edges]."""
        return torch.stack([self.row, self.col])

    def __repr__(self) -> str:
        return f"SampledSubgraph({self.num_seeds:,} seeds, {len(self.node):,} nodes, {len(self.row):,} edges)"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HeteroSampledSubgraph:
    """A sample of a heterogeneous graph: the same fields by node type and by edge type, with all types.

    Args:
        node: By node type, see `SampledSubgraph`.
        row: By edge type: source of each edge, a place in `node` of the edge type's first node type.
        col: By edge type: destination of each edge, a place in `node` of its last node type.
        edge: By edge type.
        num_sampled_nodes: By node type.
        num_sampled_edges: By edge type; None if edges are not in order of hops.
        batch: By node type; trees are numbered through all seed types, in the order of the seeds.
    """

    node: Mapping[str, Tensor]
    row: Mapping[EdgeType, Tensor]
    col: Mapping[EdgeType, Tensor]
    edge: Mapping[EdgeType, Tensor]
    num_sampled_nodes: Mapping[str, tuple[int, ...]]
    num_sampled_edges: Mapping[EdgeType, tuple[int, ...]] | None
    batch: Mapping[str, Tensor] | None

    @property
    def num_seeds(self) -> dict[str, int]:
        """The number of seeds of each type, which are its first nodes."""
        return {node_type: numbers[0] for node_type, numbers in self.num_sampled_nodes.items()}

    @property
    def edge_index(self) -> dict[EdgeType, Tensor]:
        """Source and destination of each edge by edge type, int64 [2, num_edges]."""
        return {edge_type: torch.stack([row, self.col[edge_type]]) for edge_type, row in self.row.items()}

    def __repr__(self) -> str:
        nodes, edges = (sum(map(len, part.values())) for part in (self.node, self.row))
        return f"HeteroSampledSubgraph({sum(self.num_seeds.values()):,} seeds, {nodes:,} nodes, {edges:,} edges)"


def add_reversed(sample: HeteroSampledSubgraph, reverse_of: Mapping[EdgeType, EdgeType]) -> HeteroSampledSubgraph:
    """Return the sample with every edge in both directions, by adding the reverses that were not sampled.

    An added edge has the number of its reverse, and comes after the sampled edges.

    Args:
        sample: A sample with edges of one direction.
        reverse_of: The type of the reversed edges of each type; the same type if both ends have one node type.

    Example:
        >>> follows = ("user", "follows", "user")
        >>> sample = HeteroSampledSubgraph(
        ...     node={"user": torch.tensor([5, 8, 9])},
        ...     row={follows: torch.tensor([1, 2, 0])},
        ...     col={follows: torch.tensor([0, 0, 2])},
        ...     edge={follows: torch.tensor([70, 71, 72])},
        ...     num_sampled_nodes={"user": (1, 2)},
        ...     num_sampled_edges=None,
        ...     batch=None,
        ... )
        >>> both = add_reversed(sample, {follows: follows})
        >>> both.edge_index[follows].tolist(), both.edge[follows].tolist()
        ([[1, 2, 0, 0], [0, 0, 2, 1]], [70, 71, 72, 70])
    """
    row, col, edge = dict(sample.row), dict(sample.col), dict(sample.edge)
    for edge_type, reverse in reverse_of.items():
        width = max(len(sample.node[edge_type[0]]), len(sample.node[edge_type[2]]), 1)
        there = sample.row[reverse] * width + sample.col[reverse]
        alone = ~torch.isin(sample.col[edge_type] * width + sample.row[edge_type], there)
        row[reverse] = torch.cat([row[reverse], sample.col[edge_type][alone]])
        col[reverse] = torch.cat([col[reverse], sample.row[edge_type][alone]])
        edge[reverse] = torch.cat([edge[reverse], sample.edge[edge_type][alone]])
    return replace(sample, row=row, col=col, edge=edge, num_sampled_edges=None)

"""Trimming of oversize batches: random nodes or edges are removed, reproducibly, and protected nodes stay."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import GRAPHS, Attribute, Axis, Level, ends_of, require_certain
from popgeo.data.flat_store import FlatStore
from popgeo.data.subset import keep_rows


class OverSizeStrategy(Enum):
    """The treatment of graphs that do not fit a batch.

    Example:
        >>> OverSizeStrategy.TrimNodes.trims_nodes, OverSizeStrategy.TrimNodes.trims_edges
        (True, False)
    """

    Error = 0
    """Raise a ValueError that names the graph and the excess."""
    Skip = 1
    """Leave out graphs that do not fit, and count them."""
    TrimNodes = 2
    """Remove random nodes, with their edges, until the rest fits."""
    TrimEdges = 3
    """Remove random edges until the rest fits."""
    TrimNodesAndEdges = 4
    """Remove random nodes, then random edges, until the rest fits."""
    Alone = 5
    """Put the graph alone into a larger batch. Only `FixedSizeBatchSampler` allows this: users collate its batches."""

    @property
    def trims_nodes(self) -> bool:
        """Whether nodes may be removed."""
        return self in (OverSizeStrategy.TrimNodes, OverSizeStrategy.TrimNodesAndEdges)

    @property
    def trims_edges(self) -> bool:
        """Whether edges may be removed on their own."""
        return self in (OverSizeStrategy.TrimEdges, OverSizeStrategy.TrimNodesAndEdges)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrimInput:
    """The nodes and edges to trim, as counts, ends of edges and protected nodes.

    Args:
        counts: The number of nodes or edges of each type.
        ends: The two nodes of each edge, numbered through all nodes of a type. int64 [2, number of edges]
        stays: True for nodes that must stay, such as seeds. [number of nodes]
        owner: The graph of each node; every graph keeps one node of each type. [number of nodes]
        distance: The distance of each node from the seeds; the farthest nodes are removed first. [number of nodes]
    """

    counts: Mapping[Axis, int]
    ends: Mapping[Axis, Tensor]
    stays: Mapping[Axis, Tensor] = field(default_factory=dict)
    owner: Mapping[Axis, Tensor] = field(default_factory=dict)
    distance: Mapping[Axis, Tensor] = field(default_factory=dict)

    def cut_down(
        self, limits: Mapping[Axis, int], *, nodes: bool, edges: bool, generator: torch.Generator
    ) -> dict[Axis, Tensor]:
        """Choose random nodes (with their edges), and then random edges, to remove until the rest fits.

        Args:
            limits: The largest number of nodes or edges of each type.
            nodes: Whether nodes may be removed.
            edges: Whether edges may be removed on their own; both directions of an undirected edge go together.
            generator: Source of randomness.

        Returns:
            True for rows that stay, for each type that loses rows.

        Raises:
            ValueError: too many rows are left after all allowed removals.
        """
        over = {axis: count - limits[axis] for axis, count in self.counts.items()}
        keep: dict[Axis, Tensor] = {}
        for axis in [axis for axis in over if axis.level is Level.NODE and over[axis] > 0 and nodes]:
            keep[axis] = self._nodes_left(axis, over[axis], generator)
        for axis, ends in self.ends.items() if keep else ():
            keep[axis] = edges_between(axis, ends, keep)
            over[axis] = int(keep[axis].sum()) - limits[axis]
        for axis in [axis for axis in over if axis.level is Level.EDGE and over[axis] > 0 and edges]:
            alive = keep.get(axis, torch.ones(self.counts[axis], dtype=torch.bool)).clone()
            alive[alive.clone()] = self._edges_left(axis, alive, over[axis], generator)
            keep[axis] = alive
        for axis, limit in limits.items():
            left = int(keep[axis].sum()) if axis in keep else self.counts[axis]
            if left > limit:
                is_node = axis.level is Level.NODE
                remedy = "one that trims nodes" if is_node and not nodes else "OverSizeStrategy.TrimNodesAndEdges"
                raise ValueError(
                    f"{'After' if nodes or edges else 'Without'} trimming, {left} {axis.label} are left and {limit} "
                    f"fit. Raise FixedSizeOptions.num_{axis.level.value}s to {left + is_node}, put fewer graphs "
                    f"into a batch, or pass {remedy}."
                )
        return keep

    def _nodes_left(self, axis: Axis, excess: int, generator: torch.Generator) -> Tensor:
        order = torch.randperm(self.counts[axis], generator=generator)
        stays = self.stays.get(axis, torch.zeros(len(order), dtype=torch.bool)).clone()
        if axis in self.owner:
            owner = self.owner[axis]
            has_none = ~torch.isin(owner[order], owner[stays])
            _, first = np.unique(owner[order][has_none].numpy(), return_index=True)
            stays[order[has_none][torch.from_numpy(first)]] = True
        if axis in self.distance:
            order = order[self.distance[axis][order].argsort(descending=True, stable=True)]
        may_go = order[~stays[order]]
        if len(may_go) < excess:
            raise ValueError(
                f"{excess} of {len(order)} {axis.label} are too many for the batch, but only {len(may_go)} may be "
                f"removed: each graph keeps one, and seeds and protected nodes stay. Raise num_nodes or put fewer "
                f"graphs into a batch."
            )
        keep = torch.ones(len(order), dtype=torch.bool)
        keep[may_go[:excess]] = False
        return keep

    def _edges_left(self, axis: Axis, alive: Tensor, excess: int, generator: torch.Generator) -> Tensor:
        pair = torch.arange(int(alive.sum()))
        if axis in self.ends:
            ends = self.ends[axis][:, alive]
            ends = ends.sort(dim=0).values if len(set(ends_of(axis))) == 1 else ends
            pair = torch.from_numpy(np.unique(ends.numpy(), axis=1, return_inverse=True)[1].ravel())
        counts = torch.bincount(pair)
        order = torch.randperm(len(counts), generator=generator)
        if self.distance:
            of_ends = zip(ends_of(axis), self.ends[axis][:, alive], strict=True)
            distance = torch.stack([self.distance[end][row] for end, row in of_ends]).amax(0)
            farthest = torch.zeros_like(counts).scatter_reduce(0, pair, distance, "amax")
            order = order[farthest[order].argsort(descending=True, stable=True)]
        goes = torch.zeros(len(counts), dtype=torch.bool)
        goes[order[: int((counts[order].cumsum(0) < excess).sum()) + 1]] = True
        return ~goes[pair]


def trim(
    store: FlatStore,
    limits: np.ndarray,
    *,
    nodes: bool,
    edges: bool,
    generator: torch.Generator,
    protect: str | None = None,
) -> tuple[FlatStore, Tensor]:
    """Remove random nodes and edges until all graphs together fit into one batch.

    Every graph keeps a node of each type that it has. An edge is removed together with either of its ends. Both
    directions of an undirected edge stay or go together.

    Args:
        store: The graphs of one batch.
        limits: The largest number of nodes or edges of each type, in the order of `store.size_axes`.
        nodes: Whether nodes may be removed.
        edges: Whether edges may be removed on their own.
        generator: Source of randomness.
        protect: A boolean node attribute, True for nodes that must stay, such as the seeds of a neighbor sampler.

    Returns:
        The remaining graphs; and the numbers of nodes and of edges, over all types, that each graph lost.
        int64 [2, num_graphs]

    Raises:
        ValueError: too many rows are left after all allowed removals.

    Example:
        >>> from torch_geometric.data import Data
        >>> graph = Data(x=torch.arange(5.0), edge_index=torch.tensor([[0, 1], [1, 0]]), seed=torch.arange(5) < 2)
        >>> left, lost = trim(FlatStore.from_dataset([graph]), np.array([2, 9]), nodes=True, edges=False,
        ...                   generator=torch.Generator(), protect="seed")
        >>> left.attributes[0].values, lost
        (tensor([0., 1.]), tensor([[3],
                [0]]))
    """
    require_certain(
        (a for a in store.attributes if a.axis != GRAPHS and a.name != protect),
        "trimming removes the rows of removed nodes or edges",
    )
    counts = dict(zip(store.size_axes, store.sizes.sum(axis=0).tolist(), strict=True))
    types = [axis for axis in counts if axis.level is Level.NODE]
    protected = {a.axis: a.tensor for a in store.attributes if a.name == protect and a.axis in types}
    joined = TrimInput(
        counts=counts,
        ends={a.axis: ends_in_all(store, a) for a in store.attributes if a.name == "edge_index" and a.is_tensor},
        stays=protected,
        owner={axis: torch.repeat_interleave(store.row_pointers[axis].diff()) for axis in types},
    )
    most = dict(zip(store.size_axes, limits.tolist(), strict=True))
    keep = joined.cut_down(most, nodes=nodes, edges=edges, generator=generator)
    if any(axis in keep for axis in types):
        check_numbering(store, " or OverSizeStrategy.TrimEdges")
    left = keep_rows(store, keep)
    lost = torch.from_numpy(store.sizes - left.sizes)
    return left, torch.stack([lost[:, : len(types)].sum(1), lost[:, len(types) :].sum(1)])


def check_numbering(store: FlatStore, remedy: str = "") -> None:
    """Check that no attribute except `edge_index` has numbers of nodes, because trimming changes these numbers.

    Raises:
        ValueError: an attribute has numbers of nodes.
    """
    for attribute in store.attributes:
        if attribute.increments is not None and attribute.name != "edge_index":
            raise ValueError(
                f"Attribute {attribute.name!r} has numbers of nodes, which change when nodes are left out. Pass "
                f"exclude_keys=[{attribute.name!r}]{remedy}."
            )


def edges_between(axis: Axis, ends: Tensor, keep: Mapping[Axis, Tensor]) -> Tensor:
    """Return True for each edge whose ends both stay.

    Args:
        axis: The edge type.
        ends: The two nodes of each edge. int64 [2, number of edges]
        keep: For each node type that loses nodes, True for nodes that stay.
    """
    alive = torch.ones(ends.shape[1], dtype=torch.bool)
    for end, row in zip(ends_of(axis), ends, strict=True):
        alive &= keep[end][row] if end in keep else alive
    return alive


def ends_in_all(store: FlatStore, attribute: Attribute) -> Tensor:
    """Return both ends of each edge, numbered through all graphs, int64 [2, number of edges]."""
    graph = torch.repeat_interleave(store.row_pointers[attribute.axis].diff())
    starts = [store.row_pointers[axis][:-1][graph] for axis in ends_of(attribute.axis)]
    return attribute.tensor.to(torch.int64) + torch.stack(starts)

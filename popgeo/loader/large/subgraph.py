"""A sampled part of a large graph: the rows of one batch, and the edges between them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import Axis, Level, StoreKey, ends_of
from popgeo.data.trim import TrimInput
from popgeo.sampling import HeteroSampledSubgraph

ONLY_EDGES = ("", "", "")
"""The sampler's name for the edge type of a graph without types; its node type is an empty text."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subgraph:
    """A subset of the nodes and edges of a large graph.

    Args:
        rows: For each node and edge type, the numbers of its nodes or edges in the large graph. int64 [number of rows]
        edge_index: For each edge type, the ends of its edges as places in `rows`. int64 [2, number of edges]
        hops: For each node type, the number of nodes at each distance from the seeds. Nodes are sorted by distance,
            seeds first.
        trees: For each node type, the seed that each node was reached from; empty if seeds share their neighbors.
            int64 [number of nodes]
        labels: Attributes of the seed edges, by name.
        num_lost: Numbers of nodes and of edges, over all types, that trimming has removed.
    """

    rows: Mapping[Axis, Tensor]
    edge_index: Mapping[Axis, Tensor]
    hops: Mapping[Axis, tuple[int, ...]]
    trees: Mapping[Axis, Tensor] = field(default_factory=dict)
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    num_lost: tuple[int, int] = (0, 0)

    @classmethod
    def from_sample(
        cls, sample: HeteroSampledSubgraph, axes: tuple[Axis, ...], labels: Mapping[str, Tensor]
    ) -> "Subgraph":
        """Return a sample of neighbors as a subgraph with all node and edge types of batches.

        Args:
            sample: Result of `sample_neighbors`.
            axes: Node and edge types of the large graph.
            labels: Attributes of the seed edges.
        """
        none = torch.empty(0, dtype=torch.int64)
        nodes: Any = {axis: axis.store or "" for axis in axes if axis.level is Level.NODE}
        edges: Any = {axis: axis.store or ONLY_EDGES for axis in axes if axis.level is Level.EDGE}
        ends = {axis: [side.get(key, none) for side in (sample.row, sample.col)] for axis, key in edges.items()}
        rows = {axis: sample.node.get(key, none) for axis, key in nodes.items()}
        return cls(
            rows=rows | {axis: sample.edge.get(key, none) for axis, key in edges.items()},
            edge_index={axis: torch.stack(both) for axis, both in ends.items()},
            hops={axis: sample.num_sampled_nodes.get(key, (0,)) for axis, key in nodes.items()},
            trees={axis: sample.batch.get(key, none) for axis, key in nodes.items() if sample.batch is not None},
            labels=labels,
        )

    def sizes(self, axes: tuple[Axis, ...]) -> list[int]:
        """Return the number of nodes or edges of each type."""
        return [len(self.rows[axis]) for axis in axes]

    def sorted_by_destination(self) -> "Subgraph":
        """Return the subgraph with the edges of each type sorted by destination, in a stable order."""
        rows, edge_index = dict(self.rows), dict(self.edge_index)
        for axis, ends in self.edge_index.items():
            if bool((ends[1].diff() < 0).any()):
                order = ends[1].argsort(stable=True)
                rows[axis], edge_index[axis] = rows[axis][order], ends[:, order]
        return replace(self, rows=rows, edge_index=edge_index)

    def trimmed(
        self, limits: Mapping[Axis, int], *, nodes: bool, edges: bool, generator: torch.Generator
    ) -> "Subgraph":
        """Remove nodes and edges until the subgraph fits a batch. The farthest from the seeds go first; seeds stay.

        Args:
            limits: Largest number of nodes and edges of each type.
            nodes: Whether nodes may be removed.
            edges: Whether edges may be removed without their nodes.
            generator: Source of randomness.

        Raises:
            ValueError: the subgraph is still too large after everything removable was removed.
        """
        distance = {axis: torch.repeat_interleave(torch.tensor(hops)) for axis, hops in self.hops.items()}
        counts = {axis: len(rows) for axis, rows in self.rows.items()}
        stays = {axis: far == 0 for axis, far in distance.items()}
        joined = TrimInput(counts=counts, ends=self.edge_index, stays=stays, distance=distance)
        keep = joined.cut_down(limits, nodes=nodes, edges=edges, generator=generator)
        left = {axis: rows[keep[axis]] if axis in keep else rows for axis, rows in self.rows.items()}
        number = {axis: stays.cumsum(0) - 1 for axis, stays in keep.items()}
        edge_index, hops, trees = {}, dict(self.hops), dict(self.trees)
        for axis, ends in self.edge_index.items():
            ends = ends[:, keep[axis]] if axis in keep else ends
            of_ends = zip(ends_of(axis), ends, strict=True)
            edge_index[axis] = torch.stack([number[end][row] if end in number else row for end, row in of_ends])
        for axis in [axis for axis in self.hops if axis in keep]:
            hops[axis] = tuple(torch.bincount(distance[axis][keep[axis]], minlength=len(hops[axis])).tolist())
            trees |= {axis: trees[axis][keep[axis]]} if axis in trees else {}
        lost = [(axis.level, len(rows) - len(left[axis])) for axis, rows in self.rows.items()]
        of_nodes, of_edges = (sum(n for level, n in lost if level is kind) for kind in (Level.NODE, Level.EDGE))
        return replace(self, rows=left, edge_index=edge_index, hops=hops, trees=trees, num_lost=(of_nodes, of_edges))

    def row_ends(self) -> dict[Axis, Tensor]:
        """Return, for each edge type with sorted edges, the end of each node's edges, int64 [num_nodes]."""
        return {
            axis: torch.bincount(ends[1], minlength=len(self.rows[ends_of(axis)[1]])).cumsum(0)
            for axis, ends in self.edge_index.items()
        }


class PartSampler(ABC):
    """A sampler of the subgraph for a pack of seeds or clusters.

    Attributes:
        num_items: Number of seeds, or clusters.
        repeats: Whether a part may have a node or an edge of the graph more than once.
        labels: Example of each attribute of seed edges.
        label_store: Edge type of the seed edges.
        seed_type: Node type or edge type of the seeds.
        around_seeds: Whether neighbors are sampled around the seeds.
    """

    num_items: int
    repeats: bool = False
    labels: Mapping[str, Tensor] = {}
    label_store: Axis | None = None
    seed_type: StoreKey = None
    around_seeds: bool = True

    @abstractmethod
    def sample(self, ids: np.ndarray, seed: int) -> Subgraph:
        """Return the subgraph for some seeds. Equal values of `seed` give the same subgraph in every process."""

"""A dataset as plain columns: what a flat store is, wherever its arrays lie."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from popgeo.data.axes import Attribute, Axis, Level, StoreKey
from popgeo.data.store.mapped import MappedFilesMixin
from popgeo.packing.packs import whole_numbers

Self = TypeVar("Self", bound="Columns")


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns(MappedFilesMixin):
    """Flat arrays and row pointers of all graphs, and which of the graphs are shown.

    Args:
        data_cls: The class of a graph.
        node_types: The node types; None for the one of a graph without types.
        edge_types: The edge types, likewise.
        attributes: What graphs hold.
        row_pointers: For each axis, where each graph's rows start, and their total. int64 [num_graphs + 1]
        states_num_nodes: Node types whose size is stated by a `num_nodes` attribute, as in graphs without features.
        indices: The graphs that this view shows, in order; None for all.
        row_ends: Set where edges are sorted by destination: for each node of the destination type of an edge type, how
            many edges of its graph end at it or at a node before it. int64 [total number of nodes]
    """

    data_cls: type
    node_types: tuple[StoreKey, ...]
    edge_types: tuple[StoreKey, ...]
    attributes: tuple[Attribute, ...]
    row_pointers: Mapping[Axis, Tensor]
    states_num_nodes: frozenset[StoreKey] = frozenset()
    indices: np.ndarray | None = None
    row_ends: Mapping[StoreKey, Tensor] | None = None
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_hetero(self) -> bool:
        """Whether the graphs are `HeteroData`."""
        return None not in self.node_types

    @property
    def graph_class(self) -> Any:
        """The class of a graph; for graphs that were given as dictionaries PyG's `Data`, which is imported here."""
        if self.data_cls is not dict:
            return self.data_cls
        from torch_geometric.data import Data

        return Data

    @property
    def num_stored(self) -> int:
        """Graphs in the arrays, whatever this view shows."""
        return next(iter(self.row_pointers.values())).numel() - 1

    def __len__(self) -> int:
        return self.num_stored if self.indices is None else len(self.indices)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """The stored graphs behind positions of this view."""
        return ids if self.indices is None else self.indices[ids]

    def view(self: Self, ids: Sequence[int] | np.ndarray) -> Self:
        """The same arrays, showing only some graphs in a given order; nothing is copied.

        Negative numbers count from the end, as a list's do.

        Raises:
            IndexError: no graph has this number.
            ValueError: the numbers are not integers, such as those of a mask.
        """
        ids, count = whole_numbers(ids), len(self)
        if len(ids) and not -count <= ids.min() <= ids.max() < count:
            raise IndexError(f"Graph {ids[(ids < -count) | (ids >= count)][0]} was asked for; there are {count}.")
        return dataclasses.replace(self, indices=self.rows(np.where(ids < 0, ids + count, ids)), _cache={})

    def counts(self, axis: Axis) -> np.ndarray:
        """How many rows each graph of this view has along an axis. int64 [num_graphs]"""
        counts = np.diff(self.row_pointers[axis].numpy())
        return counts if self.indices is None else counts[self.indices]

    @property
    def size_axes(self) -> tuple[Axis, ...]:
        """The axes that a batch has budgets for: each node type, then each edge type."""
        nodes = tuple(Axis(Level.NODE, key) for key in self.node_types)
        return nodes + tuple(Axis(Level.EDGE, key) for key in self.edge_types)

    @property
    def sizes(self) -> np.ndarray:
        """Nodes and edges (of each type) of every graph. int64 [num_graphs, num_dimensions]"""
        if "sizes" not in self._cache:
            self._cache["sizes"] = np.stack([self.counts(axis) for axis in self.size_axes], axis=1)
        return self._cache["sizes"]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_cache": {}}

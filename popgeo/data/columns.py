"""A dataset as plain columns, in memory or mapped from disk."""

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
    """Flat arrays and row pointers of all graphs, and the selection of graphs that a view shows.

    Args:
        data_cls: The class of a graph.
        node_types: The node types; (None,) for graphs without types.
        edge_types: The edge types; (None,) for graphs without types.
        attributes: The attributes of the graphs.
        row_pointers: For each axis, the first row of each graph, and the total. int64 [num_graphs + 1]
        states_num_nodes: Node types with a `num_nodes` attribute, as in graphs without features.
        indices: The graphs that this view shows, in order. Default: all.
        row_ends: Set if edges are sorted by destination. For each edge type and each node of its destination type:
            the number of edges of the graph that end at this node or an earlier node. int64 [total number of nodes]
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
        """The class of a graph; PyG's `Data` (imported here) if the graphs were dictionaries."""
        if self.data_cls is not dict:
            return self.data_cls
        from torch_geometric.data import Data

        return Data

    @property
    def num_stored(self) -> int:
        """The number of graphs in the arrays, including graphs that this view does not show."""
        return next(iter(self.row_pointers.values())).numel() - 1

    def __len__(self) -> int:
        return self.num_stored if self.indices is None else len(self.indices)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Return the stored graphs at positions of this view."""
        return ids if self.indices is None else self.indices[ids]

    def view(self: Self, ids: Sequence[int] | np.ndarray) -> Self:
        """Return a view of some graphs in a given order, without a copy.

        Negative numbers count from the end, as in a list.

        Raises:
            IndexError: no graph has this number.
            ValueError: the numbers are not integers; a mask is not allowed.
        """
        ids, count = whole_numbers(ids), len(self)
        if len(ids) and not -count <= ids.min() <= ids.max() < count:
            raise IndexError(f"Graph {ids[(ids < -count) | (ids >= count)][0]} was asked for; there are {count}.")
        return dataclasses.replace(self, indices=self.rows(np.where(ids < 0, ids + count, ids)), _cache={})

    def counts(self, axis: Axis) -> np.ndarray:
        """Return the number of rows of each graph of this view along an axis, int64 [num_graphs]."""
        counts = np.diff(self.row_pointers[axis].numpy())
        return counts if self.indices is None else counts[self.indices]

    @property
    def size_axes(self) -> tuple[Axis, ...]:
        """The axes with a size in `FixedSizeOptions`: each node type, then each edge type."""
        nodes = tuple(Axis(Level.NODE, key) for key in self.node_types)
        return nodes + tuple(Axis(Level.EDGE, key) for key in self.edge_types)

    @property
    def sizes(self) -> np.ndarray:
        """The nodes and edges (of each type) of every graph, int64 [num_graphs, num_dimensions]."""
        if "sizes" not in self._cache:
            self._cache["sizes"] = np.stack([self.counts(axis) for axis in self.size_axes], axis=1)
        return self._cache["sizes"]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_cache": {}}

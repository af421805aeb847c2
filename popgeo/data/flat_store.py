"""A dataset as flat arrays and row pointers: what every batch is cut from."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor
from torch_geometric.data import HeteroData

from popgeo.data.levels import Level, Levels, StoreKey


@dataclass(frozen=True)
class Axis:
    """What an attribute's rows are counted along: nodes or edges of a type, graphs, or rows of its own."""

    level: Level
    store: StoreKey
    name: str | None = None
    """Set for a graph-level attribute that has not one row per graph: its rows are counted on their own."""

    @property
    def label(self) -> str:
        """What to call the rows.

        Example:
            >>> Axis(Level.NODE, None).label, Axis(Level.EDGE, ("author", "writes", "paper")).label
            ('nodes', 'author-writes-paper edges')
        """
        kind = self.store if isinstance(self.store, str) else "-".join(self.store or ())
        return f"{kind} {self.level.value}s".lstrip()


GRAPHS = Axis(Level.GRAPH, None)
"""The axis of attributes that have one row per graph."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribute:
    """One attribute of all graphs, one graph after the other."""

    store: StoreKey
    name: str
    axis: Axis
    values: Tensor | Sequence[Any]
    """All rows along dimension `dim`; a list with one entry a graph where the values are no tensors."""
    dim: int = 0
    increments: Tensor | None = None
    """How far each graph shifts the values of the graphs after it in a batch (`__inc__`), or None. [num_graphs, ...]"""

    @property
    def is_tensor(self) -> bool:
        """Whether the values are one flat tensor."""
        return isinstance(self.values, Tensor)

    @property
    def tensor(self) -> Tensor:
        """The values, of an attribute that is a tensor."""
        assert isinstance(self.values, Tensor)  # callers ask `is_tensor` first
        return self.values


@dataclass(frozen=True, kw_only=True, eq=False)
class FlatStore:
    """A dataset of `Data` or `HeteroData` as flat arrays and row pointers.

    The arrays of an `InMemoryDataset` are used where they lie, without a copy; a list of graphs is concatenated once.
    Make one with `FlatStore.from_dataset`. A `FlatStore` is accepted wherever a dataset is.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, n, dtype=torch.long)) for n in (2, 3)]
        >>> store = FlatStore.from_dataset(graphs)
        >>> store
        FlatStore(2 graphs, 5 nodes, 5 edges; x: node, edge_index: edge)
        >>> store.sizes
        array([[2, 2],
               [3, 3]])
    """

    data_cls: type
    node_types: tuple[StoreKey, ...]
    edge_types: tuple[StoreKey, ...]
    attributes: tuple[Attribute, ...]
    row_pointers: Mapping[Axis, Tensor]
    """For each axis, where each graph's rows start, and their total. int64 [num_graphs + 1]"""
    states_num_nodes: frozenset[StoreKey] = frozenset()
    """Node types whose size is stated by a `num_nodes` attribute, as in graphs without features."""
    indices: np.ndarray | None = None
    """The graphs that this view shows, in order; None for all."""
    row_ends: Mapping[StoreKey, Tensor] | None = None
    """Set where edges are sorted by destination: for each node of the destination type of an edge type, how many edges
    of its graph end at it or at a node before it. int64 [total number of nodes]"""
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        exclude_keys: Sequence[str] | None = None,
        levels: Levels | None = None,
        progress_bar: bool | None = None,
    ) -> "FlatStore":
        """Flattens a dataset.

        Args:
            dataset: An `InMemoryDataset` without transform (also indexed, shuffled or split), a list of `Data` or
                `HeteroData`, or a `Subset` or `ConcatDataset` of those.
            exclude_keys: Attributes to leave out.
            levels: What an attribute's rows belong to, as `{"y": "graph"}`; what is not stated is inferred.
            progress_bar: Whether to show a bar where reading the graphs lasts longer than a second; None means at a
                terminal and in notebooks.

        Raises:
            ValueError: the dataset is empty, mixes `Data` and `HeteroData`, its graphs differ in attributes or types,
                or an attribute cannot be laid out flat.
        """
        from popgeo.data.flatten import flatten  # the verb needs the noun of this file

        return flatten(dataset, exclude_keys=exclude_keys, levels=levels, progress_bar=progress_bar)

    @property
    def is_hetero(self) -> bool:
        """Whether the graphs are `HeteroData`."""
        return issubclass(self.data_cls, HeteroData)

    @property
    def num_stored(self) -> int:
        """Graphs in the arrays, whatever this view shows."""
        return next(iter(self.row_pointers.values())).numel() - 1

    def __len__(self) -> int:
        return self.num_stored if self.indices is None else len(self.indices)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """The stored graphs behind positions of this view."""
        return ids if self.indices is None else self.indices[ids]

    def view(self, ids: Sequence[int] | np.ndarray) -> "FlatStore":
        """The same arrays, showing only some graphs in a given order; nothing is copied."""
        return dataclasses.replace(self, indices=self.rows(np.asarray(ids, dtype=np.int64)), _cache={})

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

    def level(self, name: str, store: StoreKey = None) -> Level:
        """What the rows of an attribute belong to.

        Raises:
            ValueError: there is no such attribute.
        """
        for attribute in self.attributes:
            if (attribute.store, attribute.name) == (store, name):
                return attribute.axis.level
        raise ValueError(f"No attribute {name!r} here; there are {[a.name for a in self.attributes]}.")

    def __repr__(self) -> str:
        total = self.sizes.sum(axis=0)
        nodes, edges = total[: len(self.node_types)].sum(), total[len(self.node_types) :].sum()
        names = ", ".join(f"{a.name}: {a.axis.level.value}" for a in self.attributes)
        return f"{type(self).__name__}({len(self):,} graphs, {nodes:,} nodes, {edges:,} edges; {names})"

    def _repr_html_(self) -> str:
        sizes = pd.DataFrame(self.sizes, columns=[axis.label for axis in self.size_axes])
        table = sizes.agg(["min", "mean", "max", "sum"]).T.map("{:,.6g}".format)
        return f"{len(self):,} graphs{table.to_html()}"

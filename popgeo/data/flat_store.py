"""A dataset as flat arrays and row pointers: what every batch is cut from."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from popgeo.data.axes import Attribute, Axis, Level, Levels, StoreKey
from popgeo.data.read_pyg import read, why_not_collated
from popgeo.progress import progress

_MEASURED_AT_ONCE = 256


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
        if isinstance(dataset, FlatStore):
            return dataset._without(set(exclude_keys or ()))
        if isinstance(dataset, Subset):
            whole = cls.from_dataset(
                dataset.dataset, exclude_keys=exclude_keys, levels=levels, progress_bar=progress_bar
            )
            return whole.view(dataset.indices)
        return cls(**vars(read(dataset, exclude_keys, levels, progress_bar)))

    @property
    def is_hetero(self) -> bool:
        """Whether the graphs are `HeteroData`."""
        return None not in self.node_types

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

    def _without(self, names: set[str]) -> "FlatStore":
        """The same graphs without some attributes; without any that counts edges they have none."""
        left = tuple(attribute for attribute in self.attributes if attribute.name not in names)
        if len(left) == len(self.attributes):
            return self
        pointers = dict(self.row_pointers)
        for axis in self.row_pointers:
            if axis.level is Level.EDGE and not any(attribute.axis == axis for attribute in left):
                pointers[axis] = torch.zeros_like(pointers[axis])
        return dataclasses.replace(self, attributes=left, row_pointers=pointers, row_ends=None, _cache={})

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


def why_not_flat(dataset: Any) -> str | None:
    """Why a dataset must be fetched graph by graph instead of being flattened, or None where it need not.

    Example:
        >>> why_not_flat([]) is None
        True
    """
    if isinstance(dataset, (FlatStore, list, tuple)):
        return None
    if isinstance(dataset, Subset):
        return why_not_flat(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return next((why for part in dataset.datasets if (why := why_not_flat(part))), None)
    return why_not_collated(dataset)


def measure(
    dataset: Any, exclude_keys: Sequence[str] | None, progress_bar: bool | None
) -> tuple[np.ndarray, FlatStore]:
    """Sizes of all graphs of a dataset that is not flat, and its first graphs, flat."""
    ids = progress(range(len(dataset)), "measuring graphs", "graph", progress_bar)
    parts = iter(lambda: [dataset[i] for i in islice(ids, _MEASURED_AT_ONCE)], [])
    first = FlatStore.from_dataset(next(parts, []), exclude_keys=exclude_keys)
    rest = (FlatStore.from_dataset(part, exclude_keys=exclude_keys).sizes for part in parts)
    return np.concatenate([first.sizes, *rest]), first

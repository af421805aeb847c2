"""A dataset as flat arrays and row pointers, the source of every batch."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from popgeo.data.attribute_names import with_registered
from popgeo.data.axes import Axis, Guess, Level, Levels, StoreKey
from popgeo.data.columns import Columns
from popgeo.data.pyg_counts import axis_of
from popgeo.data.read_dictionaries import read_dictionaries
from popgeo.data.store.first_use import compare_stored
from popgeo.data.store.save_columns import BUFFER_BYTES, save_columns
from popgeo.data.validate import check_indices, check_positions

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


@dataclass(frozen=True, kw_only=True, eq=False)
class FlatStore(Columns):
    """A dataset of `Data` or `HeteroData` as flat arrays and row pointers.

    The arrays of an `InMemoryDataset` are used without a copy; a list of graphs is concatenated once.
    `FlatStore.from_dataset` makes a store. Every function that takes a dataset also takes a `FlatStore`.

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

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        exclude_keys: Sequence[str] | None = None,
        levels: Levels | None = None,
        progress_bar: bool | None = None,
        validate: bool | None = None,
    ) -> "FlatStore":
        """Return a dataset as flat arrays.

        Args:
            dataset: An `InMemoryDataset` without transform (also indexed, shuffled or split); a list of `Data`, of
                `HeteroData`, or of dictionaries from names to tensors; or a `Subset` or `ConcatDataset` of these.
            exclude_keys: Attributes to leave out.
            levels: The level of attributes, as `{"y": "graph"}`. Default: registered (`register_attributes`) or
                inferred from names and numbers of rows.
            progress_bar: Whether to show a bar after one second. Default: at a terminal and in notebooks.
            validate: The checks of the graphs. None checks that every edge ends in its own graph, True also that
                positions are finite, False nothing. A `FlatStore` is not checked a second time.

        Raises:
            ValueError: the dataset is empty, mixes `Data` and `HeteroData`, its graphs differ in attributes or types,
                an attribute cannot be laid out flat, or a check fails.
        """
        store = cls._flattened(dataset, exclude_keys, levels, progress_bar)
        if validate or (validate is None and not _holds_store(dataset)):
            check_indices(store)
        if validate:
            check_positions(store)
        return store

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool | None = None) -> "FlatStore":
        """Open a store on disk that `save` or `popgeo.data.write` has written.

        Its arrays are memory maps: each page is read at its first use, processes share the pages, and the system frees
        them when it needs memory. The arrays are read-only; a graph (`store[i]`) or a batch is a copy.

        Args:
            folder: The folder.
            verify: The comparison with checksums. None compares each block of a file at its first use in a process,
                True compares (and reads) all blocks now, False compares none. Lengths, shapes and row pointers are
                always checked.

        Raises:
            ValueError: the folder is not a store, or a file is damaged. Damage may also be found later, at first use.
        """
        from popgeo.data.store.open_folder import open_folder

        return cls(**vars(open_folder(Path(folder), verify)))

    def save(self, folder: str | Path, *, buffer_bytes: int = BUFFER_BYTES, progress_bar: bool | None = None) -> None:
        """Write the graphs into a new folder for `FlatStore.open`.

        The folder appears when it is complete. After an interruption the same call continues.

        Args:
            folder: The folder, which must not exist.
            buffer_bytes: The largest number of bytes to copy in memory at a time.
            progress_bar: Whether to show a bar after one second. Default: at a terminal and in notebooks.

        Raises:
            ValueError: the folder exists, another process writes it, or its beginning has other graphs.
        """
        save_columns(self, Path(folder), buffer_bytes=buffer_bytes, progress_bar=progress_bar)

    @overload
    def __getitem__(self, index: int) -> "Data | HeteroData": ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray | torch.Tensor) -> "FlatStore": ...

    def __getitem__(self, index: Any) -> Any:
        """Return a copy of one graph as PyG's object, or a view of the graphs of a slice, a list or a mask."""
        if isinstance(index, int) or getattr(index, "ndim", 1) == 0:
            return _graph_at(self, int(self.view([int(index)]).rows(np.zeros(1, int))[0]))
        return self.view(np.arange(len(self))[index.numpy() if isinstance(index, torch.Tensor) else index])

    def __iter__(self) -> "Iterator[Data | HeteroData]":
        """Yield a copy of each graph of this view."""
        return (self[i] for i in range(len(self)))

    @classmethod
    def _flattened(
        cls, dataset: Any, exclude_keys: Sequence[str] | None, levels: Levels | None, progress_bar: bool | None
    ) -> "FlatStore":
        if isinstance(dataset, FlatStore):
            return dataset._without(set(exclude_keys or ()))._with_levels(with_registered(levels) or {})
        if isinstance(dataset, Subset):
            return cls._flattened(dataset.dataset, exclude_keys, levels, progress_bar).view(dataset.indices)
        if isinstance(dataset, (list, tuple)) and dataset and all(isinstance(graph, dict) for graph in dataset):
            return cls(**vars(read_dictionaries(dataset, set(exclude_keys or ()), levels)))
        from popgeo.data.read_pyg import read

        return cls(**vars(read(dataset, set(exclude_keys or ()), levels, progress_bar)))

    def _without(self, names: set[str]) -> "FlatStore":
        """Return the graphs without some attributes; without an attribute of edges the graphs have no edges."""
        left = tuple(attribute for attribute in self.attributes if attribute.name not in names)
        if len(left) == len(self.attributes):
            return self
        pointers, ends = dict(self.row_pointers), self.row_ends
        for axis in self.row_pointers:
            if axis.level is Level.EDGE and not any(attribute.axis == axis for attribute in left):
                pointers[axis] = torch.zeros_like(pointers[axis])
                ends = {**ends, axis.store: torch.zeros_like(ends[axis.store])} if ends else ends
        return dataclasses.replace(self, attributes=left, row_pointers=pointers, row_ends=ends, _cache={})

    def _with_levels(self, levels: Levels) -> "FlatStore":
        """Return the graphs with the stated levels of attributes.

        Raises:
            ValueError: a number of rows contradicts a level, or edges were sorted with a different level.
        """
        pointers, attributes = dict(self.row_pointers), list(self.attributes)
        for i, one in enumerate(attributes):
            given = levels.get((one.store, one.name)) or levels.get(one.name)
            if given is not None and not isinstance(given, Axis | Guess) and one.is_tensor:
                slices = self.row_pointers[one.axis]
                axis, _ = axis_of(one.store, one.name, Level(given), slices, pointers)
                if axis == one.axis and one.doubt is None:
                    continue
                if axis != one.axis and self.row_ends is not None and Level.EDGE in (axis.level, one.axis.level):
                    raise ValueError(f"Edges were sorted with {one.name!r} of {one.axis.label}. Write again.")
                attributes[i] = dataclasses.replace(one, axis=axis, doubt=None)
        if all(new is old for new, old in zip(attributes, self.attributes, strict=True)):
            return self
        return dataclasses.replace(self, attributes=tuple(attributes), row_pointers=pointers, _cache={})

    def level(self, name: str, store: StoreKey = None) -> Level:
        """Return the level of an attribute.

        Raises:
            ValueError: the graphs do not have the attribute.
        """
        for attribute in self.attributes:
            if (attribute.store, attribute.name) == (store, name):
                return attribute.axis.level
        raise ValueError(f"The graphs have no attribute {name!r}; they have {[a.name for a in self.attributes]}.")

    def __repr__(self) -> str:
        total = self.sizes.sum(axis=0)
        nodes, edges = total[: len(self.node_types)].sum(), total[len(self.node_types) :].sum()
        names = ", ".join(f"{a.name}: {a.axis.level.value}" for a in self.attributes)
        return f"{type(self).__name__}({len(self):,} graphs, {nodes:,} nodes, {edges:,} edges; {names})"

    def _repr_html_(self) -> str:
        import pandas as pd

        sizes = pd.DataFrame(self.sizes, columns=[axis.label for axis in self.size_axes])
        table = sizes.agg(["min", "mean", "max", "sum"]).T.map("{:,.6g}".format)
        return f"{len(self):,} graphs{table.to_html()}"


def _graph_at(columns: Columns, graph: int) -> "Data | HeteroData":
    """Return a copy of a stored graph as `Data` or `HeteroData`."""
    compare_stored(columns, np.array([graph]))
    data = columns.graph_class()
    stores: dict[Any, Any] = {key: data[key] for key in (*columns.node_types, *columns.edge_types) if key is not None}
    for attribute in columns.attributes:
        store = stores.get(attribute.store, data)
        if attribute.is_tensor:
            start, stop = columns.row_pointers[attribute.axis][graph : graph + 2].tolist()
            value = attribute.tensor.narrow(attribute.dim, start, stop - start).clone()
            if data.__cat_dim__(attribute.name, value, store) is None:  # graphs are stacked, not joined
                value = value.squeeze(0)
        else:
            value = attribute.values[graph]
        store[attribute.name] = value
    for key in columns.states_num_nodes:
        start, stop = columns.row_pointers[Axis(Level.NODE, key)][graph : graph + 2].tolist()
        stores.get(key, data).num_nodes = stop - start
    return data


def _holds_store(dataset: Any) -> bool:
    """Check whether the graphs come from a flat store, directly or through subsets."""
    return _holds_store(dataset.dataset) if isinstance(dataset, Subset) else isinstance(dataset, FlatStore)


def why_not_flat(dataset: Any) -> str | None:
    """Return the reason to fetch a dataset graph by graph; None if it can be flattened.

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
    from popgeo.data.read_pyg import why_not_collated

    return why_not_collated(dataset)

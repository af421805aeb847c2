"""A dataset as flat arrays and row pointers: what every batch is cut from."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

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
        """Flattens a dataset.

        Args:
            dataset: An `InMemoryDataset` without transform (also indexed, shuffled or split), a list of `Data` or
                `HeteroData`, or of dictionaries of tensors by name, or a `Subset` or `ConcatDataset` of those.
            exclude_keys: Attributes to leave out.
            levels: What an attribute's rows belong to, as `{"y": "graph"}`; the others are inferred.
            progress_bar: Whether to show a bar where reading the graphs lasts longer than a second; None means at a
                terminal and in notebooks.
            validate: Whether graphs are checked: None checks that every edge ends in its own graph, True also that
                positions are finite, False nothing. A `FlatStore` has been checked when it was made.

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
        """Opens a store on disk, which `save` or `popgeo.data.write` has written; it can do all that one in memory can.

        Its arrays are mapped: nothing is read until it is used, processes share what has been read, and the system
        takes the memory back when it needs it. They are read-only; a graph (`store[i]`) or a batch is a copy.

        Args:
            folder: The folder.
            verify: When checksums are compared: None compares a block of a file when it is first used in a process,
                True all blocks at once, which reads them, False none. Lengths, shapes and row pointers always are.

        Raises:
            ValueError: the folder is not a store, or a file is damaged, which is named; later, too, if one is used.
        """
        from popgeo.data.store.open_folder import open_folder

        return cls(**vars(open_folder(Path(folder), verify)))

    def save(self, folder: str | Path, *, buffer_bytes: int = BUFFER_BYTES, progress_bar: bool | None = None) -> None:
        """Writes the graphs into a new folder, from which `FlatStore.open` reads them.

        The folder is whole or not there. Where writing was interrupted, the same call continues where it was.

        Args:
            folder: The folder, which must not exist.
            buffer_bytes: The most that is copied in memory at a time.
            progress_bar: Whether to show a bar if it lasts longer than a second; None means at a terminal and in
                notebooks.

        Raises:
            ValueError: the folder exists, another process writes it, or it was begun with other graphs.
        """
        save_columns(self, Path(folder), buffer_bytes=buffer_bytes, progress_bar=progress_bar)

    @overload
    def __getitem__(self, index: int) -> "Data | HeteroData": ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray | torch.Tensor) -> "FlatStore": ...

    def __getitem__(self, index: Any) -> Any:
        """One graph, a copy, as PyG's object; or a view of those of a slice, of a list of numbers, or of a mask."""
        if isinstance(index, int) or getattr(index, "ndim", 1) == 0:
            return _graph_at(self, int(self.view([int(index)]).rows(np.zeros(1, int))[0]))
        return self.view(np.arange(len(self))[index.numpy() if isinstance(index, torch.Tensor) else index])

    def __iter__(self) -> "Iterator[Data | HeteroData]":
        """The graphs of this view, one after the other, each a copy."""
        return (self[i] for i in range(len(self)))

    @classmethod
    def _flattened(
        cls, dataset: Any, exclude_keys: Sequence[str] | None, levels: Levels | None, progress_bar: bool | None
    ) -> "FlatStore":
        if isinstance(dataset, FlatStore):
            return dataset._without(set(exclude_keys or ()))._with_levels(levels or {})
        if isinstance(dataset, Subset):
            return cls._flattened(dataset.dataset, exclude_keys, levels, progress_bar).view(dataset.indices)
        if isinstance(dataset, (list, tuple)) and dataset and all(isinstance(graph, dict) for graph in dataset):
            return cls(**vars(read_dictionaries(dataset, set(exclude_keys or ()), levels or {})))
        from popgeo.data.read_pyg import read

        return cls(**vars(read(dataset, set(exclude_keys or ()), levels, progress_bar)))

    def _without(self, names: set[str]) -> "FlatStore":
        """The same graphs without some attributes; without any that counts edges they have none."""
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
        """The same graphs with what attributes are said to belong to.

        Raises:
            ValueError: the numbers of rows say otherwise, or edges were sorted when that was not known.
        """
        if not levels:
            return self
        pointers, attributes = dict(self.row_pointers), list(self.attributes)
        for i, one in enumerate(attributes):
            given = levels.get((one.store, one.name)) or levels.get(one.name)
            if given is not None and not isinstance(given, Axis | Guess) and one.is_tensor:
                slices = self.row_pointers[one.axis]
                axis, _ = axis_of(one.store, one.name, Level(given), slices, pointers)
                if axis != one.axis and self.row_ends is not None and Level.EDGE in (axis.level, one.axis.level):
                    raise ValueError(f"Edges were sorted with {one.name!r} of {one.axis.label}. Write again.")
                attributes[i] = dataclasses.replace(one, axis=axis, doubt=None)
        return dataclasses.replace(self, attributes=tuple(attributes), row_pointers=pointers, _cache={})

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
        import pandas as pd

        sizes = pd.DataFrame(self.sizes, columns=[axis.label for axis in self.size_axes])
        table = sizes.agg(["min", "mean", "max", "sum"]).T.map("{:,.6g}".format)
        return f"{len(self):,} graphs{table.to_html()}"


def _graph_at(columns: Columns, graph: int) -> "Data | HeteroData":
    """A stored graph as `Data` or `HeteroData`, with tensors of its own."""
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
    """Whether the graphs come from a flat store, also through subsets."""
    return _holds_store(dataset.dataset) if isinstance(dataset, Subset) else isinstance(dataset, FlatStore)


def why_not_flat(dataset: Any) -> str | None:
    """Why a dataset must be fetched graph by graph instead of being flattened, or None if it need not.

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

"""Columns from datasets of PyG; no other file distinguishes `Data` from `HeteroData` when reading."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.data.separate import separate
from torch_geometric.data.storage import BaseStorage

from popgeo.data.attribute_names import MADE_BY_BATCH
from popgeo.data.axes import Levels, StoreKey
from popgeo.data.columns import Columns
from popgeo.data.pyg_counts import JoinedColumn, columns_of
from popgeo.data.read_dictionaries import join_store, refuse_containers, refuse_own, stated_counts
from popgeo.native.plain_tensor import plain_tensor
from popgeo.progress import progress

_Joined = dict[StoreKey, list[JoinedColumn]]


def read(dataset: Any, excluded: set[str], levels: Levels | None, progress_bar: bool | None) -> Columns:
    """Return the columns of a list of graphs or of a dataset of PyG, see `FlatStore.from_dataset`."""
    if len(dataset) == 0:
        raise ValueError(f"The dataset ({type(dataset).__name__}) is empty; a batch needs at least one graph.")
    if isinstance(dataset, (list, tuple)):
        return _read_list(dataset, excluded, levels)
    if isinstance(dataset, InMemoryDataset) and dataset.slices is not None and why_not_collated(dataset) is None:
        return _read_collated(dataset, excluded, levels)
    ids = progress(range(len(dataset)), "reading graphs", "graph", progress_bar)
    return _read_list([dataset[i] for i in ids], excluded, levels)


def why_not_collated(dataset: Any) -> str | None:
    """Return the reason why a dataset of PyG has no final graphs in memory; None if it has."""
    name = type(dataset).__name__
    if not isinstance(dataset, InMemoryDataset):
        return f"{name} does not hold its graphs in memory"
    if dataset.transform is not None:
        return f"{name} has a transform, which may be random"
    if type(dataset).get is not InMemoryDataset.get or type(dataset).__getitem__ is not InMemoryDataset.__getitem__:
        return f"{name} makes its graphs in a method that it overrides"
    return None


def _read_list(graphs: Sequence[Data | HeteroData], excluded: set[str], levels: Levels | None) -> Columns:
    """Return the columns of a list of graphs; each attribute is concatenated once."""
    _check_kinds(graphs)
    first = graphs[0]
    columns: _Joined = {}
    stated: dict[StoreKey, Tensor] = {}
    for position, store in enumerate(first.stores):
        mappings = [graph.stores[position]._mapping for graph in graphs]
        columns[store._key], counts = join_store(mappings, excluded, partial(_cat_dim, first, store))
        if counts is not None:
            stated[store._key] = counts
    return columns_of(
        type(first), *_types_of(first), _with_increments(type(first), columns, graphs), stated, levels, len(graphs)
    )


def _read_collated(dataset: InMemoryDataset, excluded: set[str], levels: Levels | None) -> Columns:
    """Return the columns of an `InMemoryDataset` without a copy; PyG has concatenated its attributes."""
    data, all_slices = dataset._data, dataset.slices
    num_graphs = InMemoryDataset.len(dataset)
    columns: _Joined = {}
    stated: dict[StoreKey, Tensor] = {}
    for store in data.stores:
        # The slices of graph attributes are at the top level, next to the slices of node and edge types.
        slices = all_slices if store._key is None else all_slices.get(store._key, {})
        names = [name for name in store.keys() if name in slices and name not in excluded | MADE_BY_BATCH]  # noqa: SIM118
        for name in (n for n in ("batch", "ptr") if n in slices and n in store and n not in excluded):
            refuse_own(name, (store[name][a:b] for a, b in zip(slices[name], slices[name][1:], strict=False)))
        columns[store._key] = [_column(data, store, name, store[name], slices[name]) for name in names]
        if "_num_nodes" in store.__dict__:
            stated[store._key] = stated_counts(store._num_nodes)
    indices = None if dataset._indices is None else np.asarray(dataset._indices, dtype=np.int64)
    graphs = (separate(type(data), data, i, all_slices, decrement=False) for i in range(num_graphs))
    columns = _with_increments(type(data), columns, graphs)
    return columns_of(type(data), *_types_of(data), columns, stated, levels, num_graphs, indices)


def _types_of(data: Data | HeteroData) -> tuple[tuple[StoreKey, ...], tuple[StoreKey, ...]]:
    """Return the node types and the edge types."""
    return tuple(store._key for store in data.node_stores), tuple(store._key for store in data.edge_stores)


def _with_increments(data_cls: type[Data | HeteroData], columns: _Joined, graphs: Iterable[Any]) -> _Joined:
    """Return the columns with the results of `__inc__` for each graph, if the class of graphs overrides `__inc__`."""
    if data_cls.__inc__ in (Data.__inc__, HeteroData.__inc__):
        return columns
    found: dict[tuple[StoreKey, str], list[Any]] = defaultdict(list)
    for graph in graphs:
        for store in graph.stores:
            for name in [column.name for column in columns[store._key] if column.slices is not None]:
                found[store._key, name].append(graph.__inc__(name, store[name], store))
    own = {place: torch.stack([*map(torch.as_tensor, numbers)]) for place, numbers in found.items()}
    return {
        key: [replace(column, increments=own.get((key, column.name))) for column in of_store]
        for key, of_store in columns.items()
    }


def _column(data: Data | HeteroData, store: BaseStorage, name: str, values: Any, slices: Tensor | None) -> JoinedColumn:
    if slices is None or not isinstance(values, Tensor):
        refuse_containers(name, values)
        return JoinedColumn(name=name, values=list(values))
    values = plain_tensor(name, values)
    dim = _cat_dim(data, store, name, values)
    num_rows = len(values) if dim is None else values.size(dim)
    if slices[0] != 0 or slices[-1] != num_rows or bool((slices.diff() < 0).any()):
        raise ValueError(f"The slices of {name!r} do not cover its {num_rows} rows. Process the dataset again.")
    dim = 0 if dim is None or values.dim() == 0 else int(dim) % values.dim()
    return JoinedColumn(name=name, values=values.contiguous(), slices=slices, dim=dim)


def _cat_dim(data: Data | HeteroData, store: BaseStorage, name: str, value: Tensor) -> int | None:
    return data.__cat_dim__(name, value, store)


def _check_kinds(graphs: Sequence[Any]) -> None:
    for index, graph in enumerate(graphs):
        if not isinstance(graph, (Data, HeteroData)):
            raise ValueError(f"Item {index} of the dataset is a {type(graph).__name__}; pass Data or HeteroData.")
        if isinstance(graph, Batch):
            raise ValueError(
                f"Item {index} of the dataset is a batch of {graph.num_graphs} graphs, which would count as one graph. "
                "Pass its graphs: batch.to_data_list(), or the dataset of a loader."
            )
    if len(kinds := {type(graph) for graph in graphs}) > 1:
        names = sorted(kind.__name__ for kind in kinds)
        raise ValueError(f"The dataset mixes {names}; batches need graphs of one class. Convert or split them.")
    if isinstance(graphs[0], HeteroData):
        types = [store._key for store in graphs[0].stores]
        for index, graph in enumerate(graphs):
            if [store._key for store in graph.stores] != types:
                raise ValueError(
                    f"Graph {index} has the node and edge types {[s._key for s in graph.stores][1:]}, graph 0 has "
                    f"{types[1:]}. Give every graph all types in the same order, also types without nodes or edges."
                )

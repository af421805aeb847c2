"""Reads datasets of PyG into plain columns: the only file that knows `Data` from `HeteroData`."""

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
    """Reads a list of graphs or a dataset of PyG, as `FlatStore.from_dataset` says."""
    if len(dataset) == 0:
        raise ValueError(f"The dataset ({type(dataset).__name__}) is empty; a batch needs at least one graph.")
    if isinstance(dataset, (list, tuple)):
        return _read_list(dataset, excluded, levels)
    if isinstance(dataset, InMemoryDataset) and dataset.slices is not None and why_not_collated(dataset) is None:
        return _read_collated(dataset, excluded, levels)
    ids = progress(range(len(dataset)), "reading graphs", "graph", progress_bar)
    return _read_list([dataset[i] for i in ids], excluded, levels)


def why_not_collated(dataset: Any) -> str | None:
    """Why the graphs of a dataset of PyG do not lie in memory as they will be used; None if they do."""
    name = type(dataset).__name__
    if not isinstance(dataset, InMemoryDataset):
        return f"{name} does not hold its graphs in memory"
    if dataset.transform is not None:
        return f"{name} has a transform, which may be random"
    if type(dataset).get is not InMemoryDataset.get or type(dataset).__getitem__ is not InMemoryDataset.__getitem__:
        return f"{name} makes its graphs in a method of its own"
    return None


def _read_list(graphs: Sequence[Data | HeteroData], excluded: set[str], levels: Levels | None) -> Columns:
    """Reads a list of graphs, concatenating each attribute once."""
    _check_kinds(graphs)
    first = graphs[0]
    columns: _Joined = {}
    stated: dict[StoreKey, Tensor] = {}
    for position, store in enumerate(first.stores):
        mappings = [graph.stores[position]._mapping for graph in graphs]
        columns[store._key], counts = join_store(mappings, excluded, partial(_cat_dim, first, store))
        if counts is not None:
            stated[store._key] = counts
    return columns_of(type(first), *_types_of(first), _asked(type(first), columns, graphs), stated, levels, len(graphs))


def _read_collated(dataset: InMemoryDataset, excluded: set[str], levels: Levels | None) -> Columns:
    """Reads the storage of an `InMemoryDataset`, which is concatenated already, without a copy."""
    data, all_slices = dataset._data, dataset.slices
    num_graphs = InMemoryDataset.len(dataset)
    columns: _Joined = {}
    stated: dict[StoreKey, Tensor] = {}
    for store in data.stores:
        # Attributes of a whole graph have their slices at the top, next to those of the node and edge types.
        slices = all_slices if store._key is None else all_slices.get(store._key, {})
        names = [name for name in store.keys() if name in slices and name not in excluded | MADE_BY_BATCH]  # noqa: SIM118
        for name in (n for n in ("batch", "ptr") if n in slices and n in store and n not in excluded):
            refuse_own(name, (store[name][a:b] for a, b in zip(slices[name], slices[name][1:], strict=False)))
        columns[store._key] = [_column(data, store, name, store[name], slices[name]) for name in names]
        if "_num_nodes" in store.__dict__:
            stated[store._key] = stated_counts(store._num_nodes)
    indices = None if dataset._indices is None else np.asarray(dataset._indices, dtype=np.int64)
    graphs = (separate(type(data), data, i, all_slices, decrement=False) for i in range(num_graphs))
    columns = _asked(type(data), columns, graphs)
    return columns_of(type(data), *_types_of(data), columns, stated, levels, num_graphs, indices)


def _types_of(data: Data | HeteroData) -> tuple[tuple[StoreKey, ...], tuple[StoreKey, ...]]:
    """The node types and the edge types."""
    return tuple(store._key for store in data.node_stores), tuple(store._key for store in data.edge_stores)


def _asked(data_cls: type[Data | HeteroData], columns: _Joined, graphs: Iterable[Any]) -> _Joined:
    """The columns with what `__inc__` says of each graph; graphs are made and asked only if their class has its own."""
    if data_cls.__inc__ in (Data.__inc__, HeteroData.__inc__):
        return columns
    asked: dict[tuple[StoreKey, str], list[Any]] = defaultdict(list)
    for graph in graphs:
        for store in graph.stores:
            for name in [column.name for column in columns[store._key] if column.slices is not None]:
                asked[store._key, name].append(graph.__inc__(name, store[name], store))
    own = {place: torch.stack([*map(torch.as_tensor, numbers)]) for place, numbers in asked.items()}
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
        raise ValueError(f"The slices of {name!r} do not lead through its {num_rows} rows. Process the dataset again.")
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
                f"Item {index} of the dataset is a batch of {graph.num_graphs} graphs, which would count as one. Give "
                "its graphs: batch.to_data_list(), or the dataset of a loader."
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
                    f"{types[1:]}. Give every graph all types in one order, empty ones included."
                )

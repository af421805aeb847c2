"""Reads datasets of PyG into plain columns: the only file that knows `Data` from `HeteroData`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.data.separate import separate
from torch_geometric.data.storage import BaseStorage
from torch_geometric.utils import is_sparse

from popgeo.data.attribute_names import MADE_BY_BATCH, NUMBERS
from popgeo.data.axes import GRAPHS, Axis, Level, Levels, StoreKey, row_pointer
from popgeo.data.columns import Columns
from popgeo.data.pyg_counts import JoinedColumn, attributes_of
from popgeo.native.plain_tensor import plain_tensor
from popgeo.progress import progress


def read(dataset: Any, exclude_keys: Sequence[str] | None, levels: Levels | None, progress_bar: bool | None) -> Columns:
    """Reads a list of graphs or a dataset of PyG, as `FlatStore.from_dataset` says."""
    if len(dataset) == 0:
        raise ValueError(f"The dataset ({type(dataset).__name__}) is empty; a batch needs at least one graph.")
    excluded = set(exclude_keys or ())
    known = {name: level if level == GRAPHS else Level(level) for name, level in (levels or {}).items()}
    if isinstance(dataset, (list, tuple)):
        return _read_list(dataset, excluded, known)
    if isinstance(dataset, InMemoryDataset) and dataset.slices is not None and why_not_collated(dataset) is None:
        return _read_collated(dataset, excluded, known)
    ids = progress(range(len(dataset)), "reading graphs", "graph", progress_bar)
    return _read_list([dataset[i] for i in ids], excluded, known)


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


def _read_list(graphs: Sequence[Data | HeteroData], excluded: set[str], levels: Mapping[Any, Level | Axis]) -> Columns:
    """Reads a list of graphs, concatenating each attribute once."""
    _check_kinds(graphs)
    first = graphs[0]
    columns: dict[StoreKey, list[JoinedColumn]] = {}
    stated: dict[StoreKey, Tensor] = {}
    for position, store in enumerate(first.stores):
        stores = [graph.stores[position] for graph in graphs]
        _check_names(stores, excluded)
        columns[store._key] = []
        for name in [name for name in store.keys() if name not in excluded | MADE_BY_BATCH]:  # noqa: SIM118
            values, slices = _concatenate(first, store, name, [s[name] for s in stores])
            column = _column(first, store, name, values, slices, lambda: graphs)
            columns[store._key].append(replace(column, is_number=not isinstance(store[name], Tensor)))
        if "num_nodes" in store:
            stated[store._key] = _counts([s["num_nodes"] for s in stores])
    return _columns(first, columns, stated, levels, len(graphs))


def _read_collated(dataset: InMemoryDataset, excluded: set[str], levels: Mapping[Any, Level | Axis]) -> Columns:
    """Reads the storage of an `InMemoryDataset`, which is concatenated already, without a copy."""
    data, all_slices = dataset._data, dataset.slices
    num_graphs = InMemoryDataset.len(dataset)

    def graphs() -> Iterable[Any]:
        return (separate(type(data), data, i, all_slices, decrement=False) for i in range(num_graphs))

    columns: dict[StoreKey, list[JoinedColumn]] = {}
    stated: dict[StoreKey, Tensor] = {}
    for store in data.stores:
        # Attributes of a whole graph have their slices at the top, next to those of the node and edge types.
        slices = all_slices if store._key is None else all_slices.get(store._key, {})
        names = [name for name in store.keys() if name in slices and name not in excluded | MADE_BY_BATCH]  # noqa: SIM118
        columns[store._key] = [_column(data, store, name, store[name], slices[name], graphs) for name in names]
        if "_num_nodes" in store.__dict__:
            stated[store._key] = _counts(store._num_nodes)
    indices = None if dataset._indices is None else np.asarray(dataset._indices, dtype=np.int64)
    return _columns(data, columns, stated, levels, num_graphs, indices)


def _columns(
    data: Data | HeteroData,
    columns: Mapping[StoreKey, Sequence[JoinedColumn]],
    stated: Mapping[StoreKey, Tensor],
    levels: Mapping[Any, Level | Axis],
    num_graphs: int,
    indices: np.ndarray | None = None,
) -> Columns:
    node_types = tuple(store._key for store in data.node_stores)
    edge_types = tuple(store._key for store in data.edge_stores)
    attributes, row_pointers = attributes_of(
        columns, node_types=node_types, edge_types=edge_types, stated=stated, levels=levels, num_graphs=num_graphs
    )
    return Columns(
        data_cls=type(data),
        node_types=node_types,
        edge_types=edge_types,
        attributes=attributes,
        row_pointers=row_pointers,
        states_num_nodes=frozenset(stated),
        indices=indices,
    )


def _column(
    data: Data | HeteroData,
    store: BaseStorage,
    name: str,
    values: Any,
    slices: Tensor | None,
    graphs: Callable[[], Iterable[Any]],
) -> JoinedColumn:
    if slices is None or not isinstance(values, Tensor):
        _refuse_containers(name, values)
        return JoinedColumn(name=name, values=list(values))
    values = plain_tensor(name, values)
    dim = data.__cat_dim__(name, values, store)
    num_rows = len(values) if dim is None else values.size(dim)
    if slices[0] != 0 or slices[-1] != num_rows or bool((slices.diff() < 0).any()):
        raise ValueError(f"The slices of {name!r} do not lead through its {num_rows} rows. Process the dataset again.")
    return JoinedColumn(
        name=name,
        values=values.contiguous(),
        slices=slices,
        dim=0 if dim is None or values.dim() == 0 else int(dim) % values.dim(),
        increments=_asked_increments(data, store._key, name, graphs),
    )


def _asked_increments(
    data: Data | HeteroData, key: StoreKey, name: str, graphs: Callable[[], Iterable[Any]]
) -> Tensor | None:
    """What `__inc__` says of each graph; graphs are made and asked only where their class has its own `__inc__`."""
    if type(data).__inc__ in (Data.__inc__, HeteroData.__inc__):
        return None
    asked = []
    for graph in graphs():
        store = next(store for store in graph.stores if store._key == key)
        asked.append(torch.as_tensor(graph.__inc__(name, store[name], store)))
    return torch.stack(asked)


def _concatenate(
    data: Data | HeteroData, store: BaseStorage, name: str, values: list[Any]
) -> tuple[Any, Tensor | None]:
    """One attribute of all graphs, as PyG's collate joins it, and where each graph starts."""
    first = values[0]
    if isinstance(first, (int, float)) and all(isinstance(value, (int, float)) for value in values):
        return torch.tensor(values), torch.arange(len(values) + 1)
    are_tensors = [isinstance(value, Tensor) for value in values]
    if any(are_tensors) and not all(are_tensors):
        odd = are_tensors.index(not are_tensors[0])
        raise ValueError(
            f"Attribute {name!r} is a {type(first).__name__} in graph 0 and a {type(values[odd]).__name__} in graph "
            f"{odd}; it must be a tensor in all graphs or in none. Convert it or pass exclude_keys=[{name!r}]."
        )
    if not isinstance(first, Tensor) or is_sparse(first) or first.is_nested:
        return values, None
    # Of torch's own class, in memory: then what they are joined to tells all else about them.
    if set(map(type, values)) != {Tensor} or any(value.numel() for value in values if not value.data_ptr()):
        values = [plain_tensor(f"Attribute {name!r} of graph {i}", value) for i, value in enumerate(values)]
    first = values[0]
    if len(set(map(attrgetter("dtype"), values))) > 1:
        odd = next(i for i, value in enumerate(values) if value.dtype != first.dtype)
        raise ValueError(
            f"Attribute {name!r} is {first.dtype} in graph 0 and {values[odd].dtype} in graph {odd}. Convert one of "
            f"them or pass exclude_keys=[{name!r}]."
        )
    if name == "edge_index" and (first.is_floating_point() or first.is_complex() or first.dtype is torch.bool):
        raise ValueError(f"edge_index is {first.dtype}; numbers of nodes are whole. Pass edge_index.long().")
    if name == "edge_index" and first.dim() == 2 and first.size(0) != 2:
        raise ValueError(f"edge_index has shape {tuple(first.shape)}; it is [2, num_edges]. Pass edge_index.t().")
    dim = data.__cat_dim__(name, first, store)
    if dim is None or first.dim() == 0:
        values, dim = [value.unsqueeze(0) for value in values], 0
    try:
        # One graph alone, which may be a large one, is used where it lies.
        with torch.no_grad():
            joined = torch.cat(values, dim=dim) if len(values) > 1 else values[0]
    except RuntimeError as error:
        graph = next((i for i, value in enumerate(values) if _width(value, dim) != _width(values[0], dim)), 0)
        raise ValueError(
            f"Attribute {name!r} cannot be joined along dimension {dim}: it is {list(values[0].shape)} in graph 0 and "
            f"{list(values[graph].shape)} in graph {graph}. Make the other dimensions equal or pass "
            f"exclude_keys=[{name!r}]."
        ) from error
    counts = torch.tensor(list(map(methodcaller("size", dim), values)))
    return plain_tensor(f"Attribute {name!r}", joined), row_pointer(counts)


def _counts(stated: Sequence[Any]) -> Tensor:
    """`num_nodes` of each graph. int64 [num_graphs]"""
    for graph, count in enumerate(stated):
        one = count.reshape(()).item() if isinstance(count, Tensor) and count.numel() == 1 else count
        if isinstance(one, bool) or not isinstance(one, (int, np.integer)) or one < 0:
            raise ValueError(f"Graph {graph} has num_nodes={count!r}; it is a whole number, and not negative.")
    return torch.tensor([int(count) for count in stated], dtype=torch.int64)


def _width(value: Tensor, dim: int) -> tuple[int, ...]:
    """The shape without the dimension that graphs are joined along."""
    shape = list(value.shape)
    del shape[dim]
    return tuple(shape)


def _check_kinds(graphs: Sequence[Any]) -> None:
    kinds = {type(graph).__name__ for graph in graphs}
    for index, graph in enumerate(graphs):
        if not isinstance(graph, (Data, HeteroData)):
            raise ValueError(f"Item {index} of the dataset is a {type(graph).__name__}; pass Data or HeteroData.")
        if isinstance(graph, Batch):
            raise ValueError(
                f"Item {index} of the dataset is a batch of {graph.num_graphs} graphs, which would count as one. Give "
                "its graphs: batch.to_data_list(), or the dataset of a loader."
            )
    if len({type(graph) for graph in graphs}) > 1:
        raise ValueError(f"The dataset mixes {sorted(kinds)}; batches need graphs of one class. Convert or split them.")
    if isinstance(graphs[0], HeteroData):
        types = [store._key for store in graphs[0].stores]
        for index, graph in enumerate(graphs):
            if [store._key for store in graph.stores] != types:
                raise ValueError(
                    f"Graph {index} has the node and edge types {[s._key for s in graph.stores][1:]}, graph 0 has "
                    f"{types[1:]}. Give every graph all types in one order, empty ones included."
                )


def _check_names(stores: Sequence[BaseStorage], excluded: set[str]) -> None:
    expected = set(stores[0].keys()) - excluded
    same = stores[0]._mapping.keys()
    for index, store in enumerate(stores):
        if store._mapping.keys() == same:  # seldom otherwise, and ten times as fast as what follows
            continue
        odd = (set(store.keys()) - excluded) ^ expected
        if odd:
            raise ValueError(
                f"Graphs 0 and {index} differ in the attributes {sorted(odd)}; all graphs of a batch need the same. "
                f"Set them everywhere or pass exclude_keys={sorted(odd)}."
            )


def _refuse_containers(name: str, values: Any) -> None:
    """Sparse matrices and nested tensors have no fixed size; strings, None and other objects pass as they are."""
    probe = values[0] if isinstance(values, (list, tuple)) and values else values
    inner = probe[0] if isinstance(probe, (list, tuple)) and probe else probe
    if (isinstance(probe, np.ndarray) and probe.dtype.kind in "biufc") or (
        name in NUMBERS and isinstance(probe, (list, tuple)) and not isinstance(inner, str)
    ):
        raise ValueError(
            f"Attribute {name!r} is a {type(probe).__name__}, which would not be joined; batches hold tensors. Make it "
            f"one with torch.as_tensor, or pass exclude_keys=[{name!r}]."
        )
    if is_sparse(probe) or isinstance(probe, (Tensor, Mapping)) or isinstance(inner, Tensor):
        raise ValueError(
            f"Attribute {name!r} holds a {type(probe).__name__}, which has no flat layout. Store it as plain tensors "
            f"(an adjacency as edge_index) or pass exclude_keys=[{name!r}]."
        )

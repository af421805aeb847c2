"""Reads datasets of PyG and lays them out flat: the only file that knows `Data` from `HeteroData`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.data.separate import separate
from torch_geometric.data.storage import BaseStorage
from torch_geometric.utils import cumsum, is_sparse

from popgeo.data.counting import count_edges, count_nodes
from popgeo.data.flat_store import GRAPHS, Attribute, Axis, FlatStore
from popgeo.data.increments import increments_of, per_outer_row
from popgeo.data.levels import Level, Levels, StoreKey, infer_level
from popgeo.packing.progress import progress

# Attributes that PyG's collate makes anew for a batch, or keeps as plain numbers.
_MADE_BY_THE_BATCH = {"batch", "ptr", "num_nodes", "num_edges"}


def why_not_flat(dataset: Any) -> str | None:
    """Why a dataset must be fetched graph by graph instead of being flattened, or None where it need not.

    Example:
        >>> why_not_flat([Data(x=torch.ones(2, 1))]) is None
        True
    """
    if isinstance(dataset, (FlatStore, list, tuple)):
        return None
    if isinstance(dataset, Subset):
        return why_not_flat(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return next((why for part in dataset.datasets if (why := why_not_flat(part))), None)
    name = type(dataset).__name__
    if not isinstance(dataset, InMemoryDataset):
        return f"{name} does not hold its graphs in memory"
    if dataset.transform is not None:
        return f"{name} has a transform, which may be random"
    if type(dataset).get is not InMemoryDataset.get or type(dataset).__getitem__ is not InMemoryDataset.__getitem__:
        return f"{name} makes its graphs in a method of its own"
    return None


def flatten(
    dataset: Any,
    *,
    exclude_keys: Sequence[str] | None = None,
    levels: Levels | None = None,
    progress_bar: bool | None = None,
) -> FlatStore:
    """Lays a dataset out flat; see `FlatStore.from_dataset`."""
    if isinstance(dataset, FlatStore):
        return _without(dataset, set(exclude_keys or ()))
    if isinstance(dataset, Subset):
        part = flatten(dataset.dataset, exclude_keys=exclude_keys, levels=levels, progress_bar=progress_bar)
        return part.view(np.asarray(dataset.indices, dtype=np.int64))
    if len(dataset) == 0:
        raise ValueError(f"The dataset ({type(dataset).__name__}) is empty; a batch needs at least one graph.")
    reader = _Flattener(set(exclude_keys or ()), {name: Level(level) for name, level in (levels or {}).items()})
    if isinstance(dataset, InMemoryDataset) and dataset.slices is not None and why_not_flat(dataset) is None:
        store = reader.read_collated(dataset._data, dataset.slices)
        return store if dataset._indices is None else store.view(np.asarray(dataset._indices, dtype=np.int64))
    if isinstance(dataset, (list, tuple)):
        return reader.read_list(dataset)
    ids = progress(range(len(dataset)), "reading graphs", "graph", progress_bar)
    return reader.read_list([dataset[i] for i in ids])


def _without(store: FlatStore, names: set[str]) -> FlatStore:
    """A flat dataset without some attributes; without any that counts edges it has none."""
    if not names & {attribute.name for attribute in store.attributes}:
        return store
    left = tuple(attribute for attribute in store.attributes if attribute.name not in names)
    pointers = dict(store.row_pointers)
    for axis in store.row_pointers:
        if axis.level is Level.EDGE and not any(attribute.axis == axis for attribute in left):
            pointers[axis] = torch.zeros_like(pointers[axis])
    return replace(store, attributes=left, row_pointers=pointers, row_ends=None, _cache={})


class _Flattener:
    """One reading of a dataset: collects attributes and row pointers."""

    def __init__(self, exclude_keys: set[str], levels: dict[Any, Level]) -> None:
        self.exclude_keys = exclude_keys
        self.levels = levels
        self.attributes: list[Attribute] = []
        self.row_pointers: dict[Axis, Tensor] = {}

    def read_collated(self, data: Data | HeteroData, slices: Mapping[Any, Any]) -> FlatStore:
        """Reads the storage of an `InMemoryDataset`: values already concatenated, and their slices."""

        def graph(index: int) -> Any:
            return separate(type(data), data, index, slices, decrement=False)

        columns: dict[StoreKey, dict[str, tuple[Any, Tensor | None]]] = {}
        stated: dict[StoreKey, Tensor] = {}
        for store in data.stores:
            store_slices = slices if store._key is None and not _is_hetero(data) else slices.get(store._key, {})
            columns[store._key] = {n: (v, store_slices[n]) for n, v in store.items() if n in store_slices}
            if "_num_nodes" in store.__dict__:
                stated[store._key] = torch.as_tensor(store._num_nodes, dtype=torch.int64)
        num_graphs = next(len(s) - 1 for column in columns.values() for _, s in column.values() if s is not None)
        return self._finish(data, columns, stated, num_graphs, graph)

    def read_list(self, graphs: Sequence[Data | HeteroData]) -> FlatStore:
        """Reads a list of graphs, concatenating each attribute once."""
        _check_kinds(graphs)
        first = graphs[0]
        columns: dict[StoreKey, dict[str, tuple[Any, Tensor | None]]] = {}
        stated: dict[StoreKey, Tensor] = {}
        for position, store in enumerate(first.stores):
            stores = [graph.stores[position] for graph in graphs]
            _check_names(stores, self.exclude_keys)
            column = columns.setdefault(store._key, {})
            for name in store.keys():  # noqa: SIM118  iterating a store of PyG gives other things
                if name not in self.exclude_keys and name not in _MADE_BY_THE_BATCH:
                    column[name] = _concatenate(first, store, name, [s[name] for s in stores])
            if "num_nodes" in store:
                stated[store._key] = torch.tensor([s["num_nodes"] for s in stores])
        return self._finish(first, columns, stated, len(graphs), graphs.__getitem__)

    def _finish(
        self,
        data: Data | HeteroData,
        columns: dict[StoreKey, dict[str, tuple[Any, Tensor | None]]],
        stated: dict[StoreKey, Tensor],
        num_graphs: int,
        graph: Callable[[int], Any],
    ) -> FlatStore:
        self.row_pointers[GRAPHS] = torch.arange(num_graphs + 1)
        dropped = self.exclude_keys | _MADE_BY_THE_BATCH
        columns = {k: {n: v for n, v in column.items() if n not in dropped} for k, column in columns.items()}
        stores = {store._key: store for store in data.stores}
        node_stores = {store._key: store for store in data.node_stores}
        edge_stores = {store._key: store for store in data.edge_stores}
        for key in node_stores:
            counts = stated[key] if key in stated else count_nodes(stores[key], columns[key], self.levels)
            self.row_pointers[Axis(Level.NODE, key)] = cumsum(counts)
        for key in edge_stores:
            self.row_pointers[Axis(Level.EDGE, key)] = cumsum(count_edges(columns[key], num_graphs))
        for key, column in columns.items():
            for name, (values, slices) in column.items():
                self._add(data, stores[key], name, values, slices, num_graphs, graph)
        return FlatStore(
            data_cls=type(data),
            node_types=tuple(node_stores),
            edge_types=tuple(edge_stores),
            attributes=tuple(self.attributes),
            row_pointers=self.row_pointers,
            states_num_nodes=frozenset(stated),
        )

    def _add(
        self,
        data: Data | HeteroData,
        store: BaseStorage,
        name: str,
        values: Any,
        slices: Tensor | None,
        num_graphs: int,
        graph: Callable[[int], Any],
    ) -> None:
        key = store._key
        if slices is None or not isinstance(values, Tensor):
            _refuse_containers(name, values)
            self.attributes.append(Attribute(store=key, name=name, axis=GRAPHS, values=list(values)))
            return
        rows = slices.diff()
        dim = _row_dim(data, store, name, values)
        axis = self._axis(key, name, rows, slices)
        increments = increments_of(data, store, name, self.row_pointers, map(graph, range(num_graphs)), values, slices)
        if increments is not None:
            increments = per_outer_row(name, increments, values, dim)
        self.attributes.append(
            Attribute(store=key, name=name, axis=axis, values=values.contiguous(), dim=dim, increments=increments)
        )

    def _axis(self, key: StoreKey, name: str, rows: Tensor, slices: Tensor) -> Axis:
        nodes, edges = (self.row_pointers.get(Axis(level, key)) for level in (Level.NODE, Level.EDGE))
        num_nodes = None if nodes is None else nodes.diff()
        num_edges = None if edges is None else edges.diff()
        level = self.levels.get((key, name)) or self.levels.get(name) or infer_level(name, rows, num_nodes, num_edges)
        if level is not Level.GRAPH:
            expected = num_nodes if level is Level.NODE else num_edges
            if expected is None or not torch.equal(rows, expected):
                raise ValueError(_disagreement(name, level, rows, expected))
            return Axis(level, key)
        if bool((rows == 1).all()):
            return GRAPHS
        axis = Axis(Level.GRAPH, key, name)
        self.row_pointers[axis] = slices.to(torch.int64)
        return axis


def _is_hetero(data: Any) -> bool:
    return isinstance(data, HeteroData)


def _check_kinds(graphs: Sequence[Any]) -> None:
    kinds = {type(graph).__name__ for graph in graphs}
    for index, graph in enumerate(graphs):
        if not isinstance(graph, (Data, HeteroData)):
            raise ValueError(
                f"Item {index} of the dataset is a {type(graph).__name__}; Data or HeteroData of PyTorch Geometric is "
                f"needed. Turn each item into one."
            )
    if len({type(graph) for graph in graphs}) > 1:
        raise ValueError(
            f"The dataset mixes {sorted(kinds)}; a batch needs graphs of one class. Convert or split them."
        )
    if _is_hetero(graphs[0]):
        types = [store._key for store in graphs[0].stores]
        for index, graph in enumerate(graphs):
            if [store._key for store in graph.stores] != types:
                raise ValueError(
                    f"Graph {index} has the node and edge types {[s._key for s in graph.stores][1:]}, graph 0 has "
                    f"{types[1:]}. Give every graph all types in one order, empty ones included."
                )


def _check_names(stores: Sequence[BaseStorage], exclude_keys: set[str]) -> None:
    expected = set(stores[0].keys()) - exclude_keys
    for index, store in enumerate(stores):
        odd = (set(store.keys()) - exclude_keys) ^ expected
        if odd:
            raise ValueError(
                f"Graphs 0 and {index} differ in the attributes {sorted(odd)}; all graphs of a batch need the same. "
                f"Set them everywhere or pass exclude_keys={sorted(odd)}."
            )


def _refuse_containers(name: str, values: Any) -> None:
    """Sparse matrices and nested tensors have no fixed size; strings, None and other objects pass as they are."""
    probe = values[0] if isinstance(values, (list, tuple)) and values else values
    inner = probe[0] if isinstance(probe, (list, tuple)) and probe else probe
    if is_sparse(probe) or isinstance(probe, (Tensor, Mapping)) or isinstance(inner, Tensor):
        raise ValueError(
            f"Attribute {name!r} holds a {type(probe).__name__}, which has no flat layout. Store it as plain tensors "
            f"(an adjacency as edge_index) or pass exclude_keys=[{name!r}]."
        )


def _row_dim(data: Any, store: BaseStorage, name: str, values: Tensor) -> int:
    dim = data.__cat_dim__(name, values, store)
    return 0 if dim is None or values.dim() == 0 else int(dim) % values.dim()


def _concatenate(data: Any, store: BaseStorage, name: str, values: list[Any]) -> tuple[Any, Tensor | None]:
    """One attribute of all graphs, as PyG's collate joins it, and where each graph starts."""
    first = values[0]
    if isinstance(first, (int, float)) and all(isinstance(value, (int, float)) for value in values):
        return torch.tensor(values), torch.arange(len(values) + 1)
    if not isinstance(first, Tensor) or is_sparse(first) or first.is_nested:
        _refuse_containers(name, [first] if isinstance(first, Tensor) else values)
        return values, None
    dim = data.__cat_dim__(name, first, store)
    if dim is None or first.dim() == 0:
        values, dim = [value.unsqueeze(0) for value in values], 0
    try:
        joined = torch.cat(values, dim=dim)
    except RuntimeError as error:
        shapes = sorted({tuple(value.shape) for value in values})[:4]
        raise ValueError(
            f"Attribute {name!r} cannot be joined along dimension {dim}: it has shapes such as {shapes}. Make the "
            f"other dimensions equal or pass exclude_keys=[{name!r}]."
        ) from error
    return joined, cumsum(torch.tensor([value.size(dim) for value in values]))


def _disagreement(name: str, level: Level, rows: Tensor, expected: Tensor | None) -> str:
    if expected is None:
        return f"levels says {name!r}: {level.value!r}, but its store has no {level.value}s. Say 'graph'."
    odd = int((rows != expected).to(torch.int8).argmax())
    return (
        f"levels says {name!r}: {level.value!r}, but in graph {odd} it has {int(rows[odd])} rows and there are "
        f"{int(expected[odd])} {level.value}s. Correct the attribute or its level."
    )

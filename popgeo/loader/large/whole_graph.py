"""Opening a large graph as a flat dataset of one graph without copies, and reading of seeds."""

import copy
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from popgeo.data.attribute_names import MADE_BY_SAMPLING
from popgeo.data.axes import GRAPHS, Axis, Level, Levels, StoreKey, ends_of, require_certain
from popgeo.data.flat_store import FlatStore
from popgeo.data.trim import check_numbering
from popgeo.loader.large.graph_stores import open_stores, rows_of
from popgeo.sampling.compressed_graph import check_range


def open_graph(
    data: Any, exclude_keys: Sequence[str] | None, levels: Levels | None = None, whole: Collection[str | None] = ()
) -> FlatStore:
    """Open a large graph as a flat dataset of one graph, without copies. Its arrays may be memory maps of numpy.

    Args:
        data: The graph, or PyG's pair of stores.
        exclude_keys: Attributes to leave out.
        levels: Level of an attribute (node, edge or graph), if names and sizes do not decide it.
        whole: Attributes of a pair of stores to read as a whole.

    Raises:
        ValueError: the data is not one graph, has no edges or an index out of range, or an attribute cannot be taken
            apart.

    Example:
        >>> data = Data(x=np.ones((3, 2), np.float16), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> open_graph(data, None, None)
        FlatStore(1 graphs, 3 nodes, 2 edges; x: node, edge_index: edge)
    """
    rows = rows_of(data)
    shown: dict[Any, Any] = {}
    if rows is not None:
        data, found, shown = open_stores(rows, data[1], exclude_keys or (), levels or {}, whole)
        levels = {**found, **(levels or {})}
    if not isinstance(data, (Data, HeteroData)):
        raise ValueError(
            f"The graph is a {type(data).__name__}; pass one Data or HeteroData, or (feature_store, graph_store). For "
            f"a dataset of one graph pass dataset[0], for many small graphs use FixedSizeDataLoader."
        )
    store = FlatStore.from_dataset([_with_tensors(data)], exclude_keys=exclude_keys, levels=levels)
    attributes = (replace(a, values=shown.get((a.store, a.name), a.values)) for a in store.attributes)
    store = replace(store, attributes=tuple(attributes))
    names = {(attribute.store, attribute.name) for attribute in store.attributes}
    if taken := [name for _, name in names if name in MADE_BY_SAMPLING]:
        raise ValueError(f"The graph has attributes {taken}, which batches carry. Rename them or exclude_keys={taken}.")
    for axis in store.size_axes:
        if axis.level is Level.EDGE and (axis.store, "edge_index") not in names:
            what = "no edge_index" if axis.store is None else f"no edge_index of type {axis.store!r}"
            raise ValueError(f"The graph has {what}; set one, torch.empty(2, 0, dtype=torch.long) if it has no edges.")
    require_certain((a for a in store.attributes if a.axis != GRAPHS), "a batch holds some nodes and some edges")
    check_numbering(store)
    return store


def edge_indices(store: FlatStore) -> dict[StoreKey, Tensor]:
    """Return the `edge_index` of each edge type, [2, num_edges]."""
    return {a.store: a.tensor for a in store.attributes if a.name == "edge_index"}


def num_rows(store: FlatStore, axis: Axis) -> int:
    """Return the number of nodes or edges of a type."""
    return int(store.row_pointers[axis][-1])


def num_ends(store: FlatStore, edge_type: StoreKey) -> tuple[int, int]:
    """Return the numbers of possible sources and destinations of an edge type."""
    source, destination = ends_of(Axis(Level.EDGE, edge_type))
    return num_rows(store, source), num_rows(store, destination)


def seeds_of(store: FlatStore, input_nodes: Any) -> tuple[StoreKey, Tensor]:
    """Return the node type of the seeds, and their numbers, int64 [num_seeds].

    Raises:
        ValueError: the type does not exist, or a number is out of range.
    """
    is_pair = isinstance(input_nodes, tuple)
    node_type, input_nodes = _typed(store, "input_nodes", input_nodes, is_pair, store.node_types)
    count = num_rows(store, Axis(Level.NODE, node_type))
    if input_nodes is None:
        return node_type, torch.arange(count)
    seeds = torch.as_tensor(input_nodes)
    if seeds.dtype is torch.bool:
        if seeds.shape != (count,):
            raise ValueError(f"The mask input_nodes has shape {tuple(seeds.shape)}; there are {count} nodes.")
        return node_type, seeds.nonzero().flatten()
    if seeds.dim() != 1 or seeds.is_floating_point():
        raise ValueError(f"input_nodes is {seeds.dtype} of shape {tuple(seeds.shape)}; pass numbers or a mask.")
    check_range("input_nodes", seeds, count)
    return node_type, seeds.long()


def links_of(store: FlatStore, edge_label_index: Any) -> tuple[StoreKey, Tensor]:
    """Return the type of the seed edges, and their ends, int64 [2, num_links].

    Raises:
        ValueError: the type does not exist, or an end is out of range.
    """
    is_pair = isinstance(edge_label_index, tuple) and not isinstance(edge_label_index[0], str)
    edge_type, edge_label_index = _typed(store, "edge_label_index", edge_label_index, is_pair, store.edge_types)
    links = edge_indices(store)[edge_type] if edge_label_index is None else torch.as_tensor(edge_label_index)
    if links.dim() != 2 or links.shape[0] != 2 or links.is_floating_point() or links.dtype is torch.bool:
        raise ValueError(f"edge_label_index is {links.dtype} of shape {tuple(links.shape)}; pass integers [2, n].")
    for i, count in enumerate(num_ends(store, edge_type)):
        check_range(f"edge_label_index[{i}]", links[i], count)
    return edge_type, links.long()


def _typed(store: FlatStore, name: str, given: Any, is_pair: bool, types: Sequence[StoreKey]) -> tuple[StoreKey, Any]:
    """Split an argument into a type, which is None for a graph without types, and numbers."""
    if not store.is_hetero:
        return None, given
    key, numbers = given if is_pair else (given, None)
    if key not in types:
        raise ValueError(f"{name} is of type {key!r}; pass one of {list(types)}, or a pair of a type and numbers.")
    return key, numbers


def _with_tensors(data: Data | HeteroData) -> Data | HeteroData:
    """Return a copy of the graph with numpy arrays as tensors of the same memory."""
    data = copy.copy(data)
    for store in data.stores:
        for name, value in list(store.items()):
            if isinstance(value, np.ndarray):
                with warnings.catch_warnings():
                    # A memory map may be read-only; nothing here writes to it.
                    warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
                    store[name] = torch.from_numpy(value)
    return data

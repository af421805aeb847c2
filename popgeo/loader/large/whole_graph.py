"""A large graph as a flat dataset of one graph, whose arrays stay where they are: in memory, or on disk."""

import copy
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from popgeo.data.axes import Axis, Level, Levels, StoreKey
from popgeo.data.flat_store import FlatStore

_MADE_BY_THE_LOADER = ("seeds_mask", "tree", "num_trimmed_nodes", "num_trimmed_edges")


def open_graph(
    data: Data | HeteroData, exclude_keys: Sequence[str] | None, levels: Levels | None, made: Sequence[str] = ()
) -> FlatStore:
    """A large graph as a flat dataset of one; nothing is copied, and numpy arrays (memory maps) are taken as they are.

    Args:
        data: The graph.
        exclude_keys: Attributes to leave out.
        levels: What an attribute's rows belong to, where names and sizes do not tell.
        made: Attributes that the loader makes, beside those that every loader makes.

    Raises:
        ValueError: no single graph, no edges, an index outside, or an attribute that cannot be taken apart.

    Example:
        >>> data = Data(x=np.ones((3, 2), np.float16), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> open_graph(data, None, None)
        FlatStore(1 graphs, 3 nodes, 2 edges; x: node, edge_index: edge)
    """
    if not isinstance(data, (Data, HeteroData)):
        raise ValueError(
            f"The graph is a {type(data).__name__}; pass one Data or HeteroData. For a dataset of one graph pass "
            f"dataset[0], for many small graphs use FixedSizeDataLoader."
        )
    store = FlatStore.from_dataset([_with_tensors(data)], exclude_keys=exclude_keys, levels=levels)
    names = {(attribute.store, attribute.name) for attribute in store.attributes}
    taken = [name for _, name in names if name in (*_MADE_BY_THE_LOADER, *made)]
    if taken:
        raise ValueError(f"The graph has attributes {taken}, which batches carry. Rename them or exclude_keys={taken}.")
    for axis in store.size_axes:
        if axis.level is Level.EDGE and (axis.store, "edge_index") not in names:
            what = "no edge_index" if axis.store is None else f"no edge_index of type {axis.store!r}"
            raise ValueError(f"The graph has {what}; set one, torch.empty(2, 0, dtype=torch.long) if there are none.")
    for attribute in store.attributes:
        if attribute.increments is not None and attribute.name != "edge_index":
            raise ValueError(
                f"Attribute {attribute.name!r} counts nodes of the whole graph, so it would be wrong in a part of it. "
                f"Pass exclude_keys=[{attribute.name!r}]."
            )
    return store


def edge_indices(store: FlatStore) -> dict[StoreKey, Tensor]:
    """The `edge_index` of each edge type. [2, num_edges]"""
    return {a.store: a.tensor for a in store.attributes if a.name == "edge_index"}


def num_rows(store: FlatStore, axis: Axis) -> int:
    """How many nodes or edges of a type the graph has."""
    return int(store.row_pointers[axis][-1])


def _with_tensors(data: Data | HeteroData) -> Data | HeteroData:
    """The same graph with numpy arrays as tensors of the same memory."""
    data = copy.copy(data)
    for store in data.stores:
        for name, value in list(store.items()):
            if isinstance(value, np.ndarray):
                with warnings.catch_warnings():
                    # A memory map may be read-only; nobody here writes to it.
                    warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
                    store[name] = torch.from_numpy(value)
    return data

"""Several batches as one item: concatenated on dimension 0, as PopTorch hands them to a device, and taken apart."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from popgeo.data.slices import LazySlices


def join(batches: Sequence[Batch]) -> Batch:
    """One item of several batches of the same shapes.

    Every tensor is concatenated on dimension 0, so `edge_index` becomes [2 * num_batches, num_edges] and indices start
    anew in each batch; `num_nodes`, `num_edges` and `num_graphs` are those of one batch.

    Example:
        >>> from torch_geometric.data import Data
        >>> from popgeo.data import FixedSizeCollater, FixedSizeOptions
        >>> collate = FixedSizeCollater(FixedSizeOptions(3, 1, 2))
        >>> graph = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
        >>> item = join([collate([graph]), collate([graph])])
        >>> item.edge_index.shape, item.num_nodes
        (torch.Size([4, 1]), 3)
    """
    first = copy.copy(batches[0])
    for position, store in enumerate(first.stores):
        for name, value in list(store.items()):
            values = [batch.stores[position][name] for batch in batches]
            if isinstance(value, Tensor):
                store[name] = torch.cat(values)
            elif isinstance(value, list):
                store[name] = [entry for part in values for entry in part]
    slices = [batch.stores[0].__dict__["_slice_dict"] for batch in batches]
    return mark(first, slices, *_sizes(batches[0]))


def mark(batch: Any, slices: Sequence[LazySlices], num_nodes: dict[Any, int], num_edges: dict[Any, int]) -> Batch:
    """States that a batch holds several: its sizes are those of one, and how each is taken apart."""
    main = batch.stores[0].__dict__
    main.pop("_slice_dict", None)
    main.pop("_inc_dict", None)
    main["_mini_batch_slices"] = tuple(slices)
    for store in batch.stores:
        store.__dict__.pop("_num_nodes", None)
        if store._key in num_nodes:
            store["num_nodes"] = num_nodes[store._key]
        if store._key in num_edges:
            store["num_edges"] = num_edges[store._key]
    return batch


def split(batch: Any) -> list[Batch]:
    """The batches that `join` made one item of.

    Raises:
        ValueError: the batch is not such an item.
    """
    main = batch.stores[0].__dict__
    if "_mini_batch_slices" not in main:
        raise ValueError("The batch is one batch, not several joined; there is nothing to split.")
    slices = main["_mini_batch_slices"]
    return [_part(batch, i, len(slices), part) for i, part in enumerate(slices)]


def _part(batch: Any, index: int, count: int, slices: Any) -> Batch:
    part = copy.copy(batch)
    for store in part.stores:
        for name, value in list(store.items()):
            if isinstance(value, Tensor | list):
                size = len(value) // count
                store[name] = value[index * size : (index + 1) * size]
    main = part.stores[0].__dict__
    del main["_mini_batch_slices"]
    main["_slice_dict"], main["_inc_dict"] = slices, slices.increments
    for store in part.stores:
        store.__dict__.pop("_cached_attr", None)
        if store._key in slices.stated_num_nodes:
            store._num_nodes = slices.stated_num_nodes[store._key]
        elif "num_nodes" in store:
            del store["num_nodes"]
        if "num_edges" in store:
            del store["num_edges"]
    return part


def _sizes(batch: Any) -> tuple[dict[Any, int], dict[Any, int]]:
    nodes = {store._key: int(store.num_nodes) for store in batch.node_stores}
    return nodes, {store._key: int(store.num_edges) for store in batch.edge_stores}

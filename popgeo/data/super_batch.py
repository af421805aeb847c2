"""Several batches as one item: concatenation on dimension 0, as PopTorch passes them to a device, and splitting."""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from popgeo.data.separate import mark, state_num_nodes

if TYPE_CHECKING:
    from torch_geometric.data import Batch


def join(batches: "Sequence[Batch]") -> "Batch":
    """Return one item of several batches with the same shapes.

    Every tensor is concatenated on dimension 0, so `edge_index` becomes [2 * num_batches, num_edges]. Indices start
    at 0 in each batch. `num_nodes`, `num_edges` and `num_graphs` count one batch.

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
        for name in {"_real", "_seeds"} & store.__dict__.keys():
            store.__dict__[name] = tuple(batch.stores[position].__dict__[name][0] for batch in batches)
    num_nodes = {store._key: int(store.num_nodes or 0) for store in batches[0].node_stores}
    num_edges = {store._key: int(store.num_edges) for store in batches[0].edge_stores}
    return mark(first, [_split_data(batch) for batch in batches], num_nodes, num_edges)


def split(batch: Any) -> "list[Batch]":
    """Return the batches of an item of `join`.

    Raises:
        ValueError: the batch is not an item of `join`.
    """
    main = batch.stores[0].__dict__
    if "_mini_batches" not in main:
        raise ValueError("The batch is a single batch, not several joined batches; there is nothing to split.")
    parts = main["_mini_batches"]
    return [_part(batch, i, len(parts), part) for i, part in enumerate(parts)]


def _part(batch: Any, index: int, count: int, apart: tuple[Mapping[Any, Any], ...]) -> "Batch":
    part, num_nodes = copy.copy(batch), {}
    for store in part.stores:
        for name, value in list(store.items()):
            if isinstance(value, Tensor | list):
                size = len(value) // count
                store[name] = value[index * size : (index + 1) * size]
        for name in {"_real", "_seeds"} & store.__dict__.keys():
            store.__dict__[name] = store.__dict__[name][index : index + 1]
        store.__dict__.pop("_cached_attr", None)
        num_nodes[store._key] = store._mapping.pop("num_nodes", None)
        store._mapping.pop("num_edges", None)
    main = part.stores[0].__dict__
    del main["_mini_batches"]
    main["_slice_dict"], main["_inc_dict"], stated = apart
    state_num_nodes(part, stated, num_nodes)
    return part


def _split_data(batch: Any) -> tuple[Mapping[Any, Any], ...]:
    main = batch.stores[0].__dict__
    stated = {store._key: store._num_nodes for store in batch.stores if "_num_nodes" in store.__dict__}
    return main["_slice_dict"], main["_inc_dict"], stated

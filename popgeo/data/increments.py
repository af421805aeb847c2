"""How far each graph shifts the values of the graphs after it in a batch: PyG's `__inc__`, for a whole dataset."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage, EdgeStorage

from popgeo.data.counting import segment_max
from popgeo.data.flat_store import Axis
from popgeo.data.levels import Level, StoreKey


def increments_of(
    data: Data | HeteroData,
    store: BaseStorage,
    name: str,
    row_pointers: Mapping[Axis, Tensor],
    graphs: Iterable[Any],
    values: Tensor,
    slices: Tensor,
) -> Tensor | None:
    """What `__inc__` says for each graph; graphs are made and asked only where the class has its own `__inc__`."""
    key = store._key
    if type(data).__inc__ not in (Data.__inc__, HeteroData.__inc__):
        return _asked_increments(name, key, graphs)
    if "batch" in name:
        return segment_max(values.flatten(), slices) + 1
    if isinstance(data, HeteroData):
        if not (isinstance(store, EdgeStorage) and "index" in name):
            return None
        ends = [row_pointers[Axis(Level.NODE, end)].diff() for end in (store._key[0], store._key[-1])]
        return torch.stack(ends, dim=1)[:, :, None]
    return row_pointers[Axis(Level.NODE, key)].diff() if "index" in name or name == "face" else None


def per_outer_row(name: str, increments: Tensor, values: Tensor, dim: int) -> Tensor:
    """Increments as one number for each row before dimension `dim`. [num_graphs, 1 or outer]"""
    shape = increments.shape[1:]
    if increments[0].numel() == 1:
        return increments.reshape(-1, 1).to(torch.int64)
    lead = (1,) * (values.dim() - len(shape)) + tuple(shape)
    if any(size != 1 for size in lead[dim:]):
        raise ValueError(
            f"__inc__ of {name!r} returns shape {tuple(shape)}, which varies along or behind the concatenated "
            f"dimension {dim}. Return a number or a tensor that varies only before it."
        )
    outer = values.shape[:dim]
    return increments.reshape(-1, *lead[:dim]).expand(-1, *outer).reshape(increments.shape[0], -1).to(torch.int64)


def _asked_increments(name: str, key: StoreKey, graphs: Iterable[Any]) -> Tensor | None:
    asked = []
    for graph in graphs:
        store = next(store for store in graph.stores if store._key == key)
        asked.append(torch.as_tensor(graph.__inc__(name, store[name], store)))
    increments = torch.stack(asked)
    return increments if bool(increments.any()) else None

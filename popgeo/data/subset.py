"""Parts of flat datasets: some of the graphs, or some of the nodes and edges."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import Attribute, Axis, Level, ends_of, row_pointer
from popgeo.data.columns import Columns, Self
from popgeo.data.store.first_use import compare_stored
from popgeo.data.validate import check_indices, is_unchecked


def take(store: Self, ids: np.ndarray) -> Self:
    """Return a copy of some graphs of a flat dataset, in the order of `ids`.

    Raises:
        ValueError: the graphs come from a damaged store on disk.
    """
    graphs = torch.from_numpy(np.asarray(store.rows(ids), dtype=np.int64))
    compare_stored(store, graphs.numpy())
    pointers, rows = {}, {}
    for axis, pointer in store.row_pointers.items():
        starts, counts = pointer[graphs], pointer.diff()[graphs]
        pointers[axis] = row_pointer(counts)
        owner = torch.repeat_interleave(counts)
        rows[axis] = torch.arange(int(counts.sum())) + (starts - pointers[axis][:-1])[owner]
    attributes = tuple(_taken(attribute, graphs, rows) for attribute in store.attributes)
    ends = store.row_ends
    if ends is not None:  # row ends count within each graph
        ends = {key: of[rows[ends_of(Axis(Level.EDGE, key))[1]]] for key, of in ends.items()}
    taken = dataclasses.replace(
        store, attributes=attributes, row_pointers=pointers, indices=None, row_ends=ends, _cache={}
    )
    if any(map(is_unchecked, store.attributes)):
        check_indices(taken, graphs.numpy())
    return taken


def _taken(attribute: Attribute, graphs: Tensor, rows: Mapping[Axis, Tensor]) -> Attribute:
    if not attribute.is_tensor:
        return dataclasses.replace(attribute, values=[attribute.values[i] for i in graphs.tolist()])
    values = attribute.tensor.index_select(attribute.dim, rows[attribute.axis])
    increments = None if attribute.increments is None else attribute.increments[graphs]
    return dataclasses.replace(attribute, values=values, increments=increments)


def keep_rows(store: Self, keep: Mapping[Axis, Tensor]) -> Self:
    """Return a flat dataset without some nodes and edges; the ends of remaining edges get new numbers.

    Args:
        store: A dataset that is not a view.
        keep: For each axis that loses rows, True for rows that stay. The ends of each edge that stays must stay.
    """
    pointers = dict(store.row_pointers)
    for axis, mask in keep.items():
        running = row_pointer(mask.to(torch.int64))
        pointers[axis] = running[store.row_pointers[axis]]
    attributes = tuple(_kept(store, attribute, keep, pointers) for attribute in store.attributes)
    return dataclasses.replace(store, attributes=attributes, row_pointers=pointers, row_ends=None, _cache={})


def _kept(
    store: Columns, attribute: Attribute, keep: Mapping[Axis, Tensor], pointers: Mapping[Axis, Tensor]
) -> Attribute:
    mask = keep.get(attribute.axis)
    values = attribute.values
    if mask is not None:
        values = attribute.tensor.index_select(attribute.dim, mask.nonzero().flatten())
    if attribute.name != "edge_index" or not isinstance(values, Tensor):
        return dataclasses.replace(attribute, values=values)
    graph = torch.repeat_interleave(pointers[attribute.axis].diff())
    ends, steps = [], []
    for row, axis in zip(values, ends_of(attribute.axis), strict=True):
        new_number = _renumbered(store.row_pointers[axis], keep.get(axis))
        ends.append(new_number[row.to(torch.int64) + store.row_pointers[axis][:-1][graph]].to(values.dtype))
        steps.append(pointers[axis].diff())
    increments = torch.stack(steps if isinstance(attribute.store, tuple) else steps[:1], dim=1)
    return dataclasses.replace(attribute, values=torch.stack(ends), increments=increments)


def _renumbered(pointer: Tensor, keep: Tensor | None) -> Tensor:
    """Return the new number of each node within its graph, [number of nodes before]."""
    owner = torch.repeat_interleave(pointer.diff())
    before = torch.arange(int(pointer[-1]) + 1) if keep is None else row_pointer(keep.to(torch.int64))
    return before[:-1] - before[pointer[:-1]][owner]

"""Fills the tensors of batches with plain torch: the definition of what a batch holds."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import GRAPHS, Axis
from popgeo.data.flat_store import FlatStore
from popgeo.data.masks import fill_mask
from popgeo.data.slots import Layout, Slot, SlotKind
from popgeo.data.subset import take


def fill(store: FlatStore, layout: Layout, rows: np.ndarray, ptr: np.ndarray, out: Sequence[Tensor]) -> None:
    """Writes batches into tensors, one batch after the other.

    The graphs must fit the layout; the caller has checked it.

    Args:
        store: The dataset.
        layout: Slots of a batch.
        rows: Stored graphs of all batches, one batch after the other. int64 [total number of graphs]
        ptr: Where each batch starts in `rows`. int64 [num_batches + 1]
        out: One tensor for each slot, [num_batches, *slot.shape]; every element is overwritten.
    """
    attributes = tuple(slot.attribute for slot in layout.slots if slot.attribute is not None)
    store = dataclasses.replace(store, attributes=attributes, indices=None)
    for number, (start, stop) in enumerate(pairwise(ptr.tolist())):
        batch = _Batch(take(store, rows[start:stop]), layout.options.num_graphs)
        for slot, tensor in zip(layout.slots, out, strict=True):
            _FILL[slot.kind](batch, slot, tensor[number])


class _Batch:
    """The graphs of one batch, flat, before there is any padding."""

    def __init__(self, store: FlatStore, num_graphs: int) -> None:
        self.store, self.num_real, self.num_graphs = store, len(store), num_graphs
        self.attributes = {(attribute.store, attribute.name): attribute for attribute in store.attributes}

    def num_rows(self, axis: Axis) -> int:
        return int(self.store.row_pointers[axis][-1])

    def graph(self, axis: Axis) -> Tensor:
        """The graph of each row."""
        return torch.repeat_interleave(self.store.row_pointers[axis].diff())

    def values(self, slot: Slot) -> Tensor:
        """What the graphs hold of an attribute. [outer, rows, inner]"""
        values = self.attributes[slot.store, slot.name].tensor
        return values.reshape(slot.outer, self.num_rows(slot.axis), slot.inner)


def _copy(batch: _Batch, slot: Slot, out: Tensor) -> None:
    out.fill_(slot.pad_value)
    out.view(slot.outer, slot.num_slots, slot.inner)[:, : batch.num_rows(slot.axis)] = batch.values(slot)


def _shift(batch: _Batch, slot: Slot, out: Tensor) -> None:
    increments = batch.attributes[slot.store, slot.name].increments
    assert increments is not None  # what makes it a shifted slot
    increments = increments[:, torch.arange(slot.outer) % increments.shape[1]]
    before = torch.cat([increments.new_zeros(1, slot.outer), increments.cumsum(0)]).T  # [outer, num_real + 1]
    # Padding points at the first row after the real ones, which is padding itself.
    padding = before[:, -1:].expand(-1, slot.num_slots)
    if slot.spread:
        padding = padding + torch.stack([_dealt(batch, slot, end) for end in range(slot.outer)])
    shaped = out.view(slot.outer, slot.num_slots, slot.inner)
    shaped[:] = padding[:, :, None]
    shift = before[:, batch.graph(slot.axis), None]
    shaped[:, : batch.num_rows(slot.axis)] = batch.values(slot) + shift


def _dealt(batch: _Batch, slot: Slot, end: int) -> Tensor:
    """Which padding node each padding edge joins, when they are dealt out evenly and in order. [num_slots]"""
    axis, num_nodes = slot.ends[end]
    used = batch.num_rows(slot.axis)
    edge = (torch.arange(slot.num_slots) - used).clamp(min=0)
    return edge * (num_nodes - batch.num_rows(axis)) // max(slot.num_slots - used, 1)


def _segment(batch: _Batch, slot: Slot, out: Tensor) -> None:
    if slot.fixed_rows:
        out[:] = torch.arange(slot.num_slots) // max(slot.num_slots // batch.num_graphs, 1)
    else:
        out.fill_(batch.num_real)  # the first padding graph owns the padding
        out[: batch.num_rows(slot.axis)] = batch.graph(slot.axis)


def _pointer(batch: _Batch, slot: Slot, out: Tensor) -> None:
    if slot.fixed_rows:
        out[:] = torch.arange(batch.num_graphs + 1) * (slot.num_slots // batch.num_graphs)
    else:
        out.fill_(slot.num_slots)
        out[: batch.num_real + 1] = batch.store.row_pointers[slot.axis]


def _mask(batch: _Batch, slot: Slot, out: Tensor) -> None:
    fill_mask(out, batch.num_real if slot.axis == GRAPHS else batch.num_rows(slot.axis))


def _row_pointer(batch: _Batch, slot: Slot, out: Tensor) -> None:
    assert batch.store.row_ends is not None  # lay_out adds the slot only then
    axis, num_nodes = slot.ends[1]
    used, num_edges = batch.num_rows(axis), batch.num_rows(slot.axis)
    free_nodes = max(num_nodes - used, 1) if slot.spread else 1  # none where graphs fill a batch
    free_edges = slot.num_slots - num_edges
    dealt = -(torch.arange(1, num_nodes - used + 1) * -free_edges // free_nodes)
    first = batch.store.row_pointers[slot.axis][batch.graph(axis)]
    out[0] = 0
    out[1 : used + 1] = batch.store.row_ends[slot.store] + first
    out[used + 1 :] = num_edges + dealt.clamp(max=free_edges)


_FILL: Mapping[SlotKind, Callable[[_Batch, Slot, Tensor], None]] = {
    SlotKind.COPY: _copy,
    SlotKind.SHIFT: _shift,
    SlotKind.SEGMENT: _segment,
    SlotKind.POINTER: _pointer,
    SlotKind.MASK: _mask,
    SlotKind.ROW_POINTER: _row_pointer,
}

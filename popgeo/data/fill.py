"""Filling of the tensors of several batches with plain torch: the definition of the contents of a batch."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import GRAPHS, Attribute, Axis
from popgeo.data.batch_contents import Layout, Slot, SlotKind
from popgeo.data.flat_store import FlatStore
from popgeo.data.subset import take
from popgeo.data.validate import is_unchecked


def fill(store: FlatStore, layout: Layout, rows: np.ndarray, ptr: np.ndarray, out: Sequence[Tensor]) -> None:
    """Write batches into tensors.

    The caller has checked that the graphs fit the layout.

    Args:
        store: The dataset.
        layout: Slots of a batch.
        rows: Stored graphs of all batches, one batch after the other. int64 [total number of graphs]
        ptr: The start of each batch in `rows`, and the end. int64 [num_batches + 1]
        out: One tensor per slot, [num_batches, *slot.shape]; every element is overwritten.
    """
    chunk = _Chunk(store, torch.from_numpy(rows), torch.from_numpy(ptr), layout.options.num_graphs)
    for slot, tensor in zip(layout.slots, out, strict=True):
        _FILL[slot.kind](chunk, slot, tensor)


class _Rows:
    """The rows of all batches of a chunk along one axis."""

    def __init__(self, chunk: "_Chunk", row_pointer: Tensor) -> None:
        starts = row_pointer[chunk.graphs]
        self.counts = row_pointer[chunk.graphs + 1] - starts
        self.ends = torch.cat([torch.zeros(1, dtype=torch.int64), self.counts.cumsum(0)])
        self.batch_starts = self.ends[chunk.ptr]
        self.used = self.batch_starts.diff()  # [num_batches]
        self.graph = torch.repeat_interleave(self.counts)
        self.batch = chunk.batch_of_graph[self.graph]
        position = torch.arange(int(self.ends[-1]))
        self.source = position + (starts - self.ends[:-1])[self.graph]
        self.position = position - self.batch_starts[:-1][self.batch]

    def place(self, tensor: Tensor, values: Tensor) -> None:
        """Write the value of each row to its place in `tensor` [num_batches, slots, ...]."""
        tensor[self.batch, self.position] = values


class _Chunk:
    """Batches to fill together, with their row numbers along each axis."""

    def __init__(self, store: FlatStore, graphs: Tensor, ptr: Tensor, num_graphs: int) -> None:
        self.store, self.graphs, self.ptr, self.num_graphs = store, graphs, ptr, num_graphs
        self.num_real = ptr.diff()
        self.batch_of_graph = torch.repeat_interleave(self.num_real)
        self.position_of_graph = torch.arange(len(graphs)) - ptr[:-1][self.batch_of_graph]
        self._rows: dict[Axis, _Rows] = {}

    def rows(self, axis: Axis) -> _Rows:
        if axis not in self._rows:
            self._rows[axis] = _Rows(self, self.store.row_pointers[axis])
        return self._rows[axis]

    def offsets(self, increments: Tensor) -> tuple[Tensor, Tensor]:
        """Return, for each graph, the sum over earlier graphs of its batch, and, for each batch, the total."""
        running = torch.cat([torch.zeros_like(increments[:1]), increments[self.graphs].cumsum(0)])
        start = running[self.ptr[:-1]]
        return running[:-1] - start[self.batch_of_graph], running[self.ptr[1:]] - start


def _copy(chunk: _Chunk, slot: Slot, out: Tensor) -> None:
    rows = chunk.rows(slot.axis)
    out.fill_(slot.pad_value)
    assert slot.attribute is not None  # lay_out gives an attribute to every copied slot
    values = _shaped(slot.attribute, slot)
    shaped = out.view(len(out), slot.outer, slot.num_slots, slot.inner)
    for i in range(slot.outer):
        rows.place(shaped[:, i], values[i].index_select(0, rows.source))


def _shift(chunk: _Chunk, slot: Slot, out: Tensor) -> None:
    rows = chunk.rows(slot.axis)
    attribute = slot.attribute
    assert attribute is not None  # as above
    assert attribute.increments is not None  # a shifted slot has increments
    if is_unchecked(attribute):
        take(dataclasses.replace(chunk.store, indices=None), chunk.graphs.numpy())  # checks the indices
    before, total = chunk.offsets(attribute.increments)
    values = _shaped(attribute, slot)
    shaped = out.view(len(out), slot.outer, slot.num_slots, slot.inner)
    for i in range(slot.outer):
        outer = i % before.shape[1]
        # Padding refers to the first row after the real rows, which is a padding row.
        padding = total[:, outer, None].expand(-1, slot.num_slots)
        if slot.spread:
            padding = padding + _dealt(chunk, slot, i)
        shaped[:, i] = padding[:, :, None].to(out.dtype)
        shift = before[:, outer][rows.graph]
        rows.place(shaped[:, i], (values[i].index_select(0, rows.source) + shift[:, None]).to(out.dtype))


def _shaped(attribute: Attribute, slot: Slot) -> Tensor:
    """Return all values of an attribute as [outer, rows, inner]."""
    return attribute.tensor.view(slot.outer, attribute.tensor.shape[attribute.dim], slot.inner)


def _dealt(chunk: _Chunk, slot: Slot, end: int) -> Tensor:
    """Return the padding node of each padding edge, distributed evenly and in order, [num_batches, slots]."""
    axis, num_nodes = slot.ends[end]
    free_nodes = num_nodes - chunk.rows(axis).used
    used = chunk.rows(slot.axis).used
    edge = (torch.arange(slot.num_slots) - used[:, None]).clamp(min=0)
    free_edges = (slot.num_slots - used).clamp(min=1)
    return edge * free_nodes[:, None] // free_edges[:, None]


def _segment(chunk: _Chunk, slot: Slot, out: Tensor) -> None:
    if slot.fixed_rows:
        each = slot.num_slots // chunk.num_graphs
        out.copy_((torch.arange(slot.num_slots) // max(each, 1)).expand_as(out))
        return
    rows = chunk.rows(slot.axis)
    out.copy_(chunk.num_real[:, None].expand_as(out))  # the first padding graph owns the padding
    rows.place(out, chunk.position_of_graph[rows.graph].to(out.dtype))


def _pointer(chunk: _Chunk, slot: Slot, out: Tensor) -> None:
    if slot.fixed_rows:
        out.copy_((torch.arange(chunk.num_graphs + 1) * (slot.num_slots // chunk.num_graphs)).expand_as(out))
        return
    rows = chunk.rows(slot.axis)
    graph = torch.arange(chunk.num_graphs + 1)
    first_padding = torch.where(graph == chunk.num_real[:, None], rows.used[:, None], slot.num_slots)
    out.copy_(first_padding)
    first = rows.ends[:-1] - rows.batch_starts[:-1][chunk.batch_of_graph]
    out[chunk.batch_of_graph, chunk.position_of_graph] = first.to(out.dtype)


def _mask(chunk: _Chunk, slot: Slot, out: Tensor) -> None:
    num_real = chunk.num_real if slot.axis == GRAPHS else chunk.rows(slot.axis).used
    torch.lt(torch.arange(out.shape[1]), num_real[:, None], out=out)


def _row_pointer(chunk: _Chunk, slot: Slot, out: Tensor) -> None:
    assert chunk.store.row_ends is not None  # lay_out adds the slot only then
    edges, (axis, num_nodes) = chunk.rows(slot.axis), slot.ends[1]
    nodes = chunk.rows(axis)
    node = torch.arange(1, num_nodes + 1) - nodes.used[:, None]  # 1 is the first padding node
    free_nodes = (num_nodes - nodes.used)[:, None].clamp(min=1) if slot.spread else 1  # 0 if graphs fill a batch
    free_edges = (slot.num_slots - edges.used)[:, None]
    dealt = -(-node * free_edges // free_nodes)
    out[:, 0] = 0
    out[:, 1:] = edges.used[:, None] + dealt.minimum(free_edges)
    before = edges.ends[:-1] - edges.batch_starts[:-1][chunk.batch_of_graph]
    ends = chunk.store.row_ends[slot.store].index_select(0, nodes.source) + before[nodes.graph]
    nodes.place(out[:, 1:], ends.to(out.dtype))


_FILL = {
    SlotKind.COPY: _copy, SlotKind.SHIFT: _shift, SlotKind.SEGMENT: _segment, SlotKind.POINTER: _pointer,
    SlotKind.MASK: _mask, SlotKind.ROW_POINTER: _row_pointer,
}  # fmt: skip

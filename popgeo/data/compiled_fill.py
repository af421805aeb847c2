"""Compiled filling of the tensors of several batches in one call; `fill.py` is the definition of the result."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import GRAPHS, Axis, Level, ends_of
from popgeo.data.batch_contents import Layout, Slot, SlotKind
from popgeo.data.fill import fill
from popgeo.data.flat_store import FlatStore
from popgeo.data.store.first_use import compare_stored
from popgeo.data.subset import take
from popgeo.data.validate import is_unchecked
from popgeo.native import library

_INTEGERS = (torch.int32, torch.int64)

_OUT = 10  # the position of `out` among the fields of `Filler._describe`


class Filler:
    """A function that fills batches of one dataset and one layout, compiled if the library is available."""

    def __init__(self, store: FlatStore, layout: Layout) -> None:
        _check_rows(store, layout)
        self.store, self.layout = store, layout
        self.axes = list(store.row_pointers)
        self.kept: list[Tensor] = []  # the table has addresses of these tensors
        # Zero means one row per graph.
        of_axes = [0 if axis == GRAPHS else self._address(p.contiguous()) for axis, p in store.row_pointers.items()]
        self.row_pointers = np.array(of_axes, dtype=np.int64)
        self.of_rows = self.row_pointers.ctypes.data, len(self.axes)
        self.table = np.array([list(self._describe(slot).values()) for slot in layout.slots], dtype=np.int64)
        sources = [(slot.kind, slot.attribute.tensor) for slot in layout.slots if slot.attribute is not None]
        self.can_be_compiled = all(
            values.device.type == "cpu" and (kind is not SlotKind.SHIFT or values.dtype in _INTEGERS)
            for kind, values in sources
        )

    def __call__(self, rows: np.ndarray, ptr: np.ndarray, out: Sequence[Tensor]) -> None:
        """Write batches into tensors, as `popgeo.data.fill.fill` does; the tensors may have room for more batches.

        Raises:
            MemoryError: there is not enough memory for the row numbers of a batch.
            ValueError: the graphs of a batch do not fit (callers check this before), or the store on disk is damaged.
        """
        compare_stored(self.store, rows)
        entry = library.function("popgeo_collate", "PPqPqPqq", "i") if self.can_be_compiled else None
        num_batches = len(ptr) - 1
        if entry is None:
            fill(self.store, self.layout, rows, ptr, [tensor[:num_batches] for tensor in out])
            return
        assert ptr[-1] <= len(rows)
        assert all(len(tensor) >= num_batches for tensor in out)  # callers allocated them
        rows, ptr = np.ascontiguousarray(rows, dtype=np.int64), np.ascontiguousarray(ptr, dtype=np.int64)
        table = self.table.copy()  # several threads may fill at once
        table[:, _OUT] = [tensor.data_ptr() for tensor in out]
        num_graphs, of_table = self.layout.options.num_graphs, (table.ctypes.data, len(table))
        failed = entry(rows.ctypes.data, ptr.ctypes.data, num_batches, *self.of_rows, *of_table, num_graphs)
        if failed == 1:
            raise MemoryError(f"No memory for the row numbers of a batch of {len(rows)} graphs.")
        if failed == 3:
            take(replace(self.store, indices=None), rows)  # raises and names the index and the graph
        if failed:
            raise ValueError(f"The {len(rows)} graphs do not fit their {num_batches} batches. Make the batches larger.")

    def __reduce__(self) -> Any:
        return Filler, (self.store, self.layout)  # addresses mean nothing in another process

    def _address(self, tensor: Tensor) -> int:
        self.kept.append(tensor)
        return library.address(tensor) if tensor.is_cpu else 0

    def _describe(self, slot: Slot) -> dict[str, int]:
        """Return the fields of `Slot` in csrc/collate.cpp, in its order; each is a 64-bit integer or an address."""
        attribute = slot.attribute
        source = attribute.tensor if attribute is not None else torch.empty(0, dtype=slot.dtype)
        empty = torch.empty(slot.shape, dtype=slot.dtype)
        increments = None if attribute is None else attribute.increments
        ends = [(self.axes.index(axis), number) for axis, number in slot.ends] or [(0, 0)] * 2
        pointers = {SlotKind.POINTER: self.layout.options.num_graphs + 1, SlotKind.ROW_POINTER: ends[1][1] + 1}
        num_written = pointers.get(slot.kind, slot.outer * slot.num_slots * slot.inner)
        assert empty.numel() == num_written  # otherwise the library would write outside of the batch
        row_ends = (self.store.row_ends or {}).get(slot.store) if slot.kind is SlotKind.ROW_POINTER else None
        return {
            "kind": int(slot.kind),
            "axis": self.axes.index(slot.axis),
            "num_slots": slot.num_slots,
            "fixed_rows": int(slot.fixed_rows),
            "outer": slot.outer,
            "inner": slot.inner,
            "element_bytes": source.element_size(),
            "out_bytes": empty.element_size(),
            "source": self._address(source),
            "source_rows": 0 if attribute is None else source.shape[attribute.dim],
            "out": 0,
            "batch_bytes": empty.numel() * empty.element_size(),
            "pad": self._address(torch.zeros(1, dtype=source.dtype).fill_(slot.pad_value)),
            "increments": 0 if increments is None else self._address(increments.contiguous()),
            "increment_width": 0 if increments is None else increments.shape[1],
            "spread": int(slot.spread),
            "end_axis_0": ends[0][0],
            "end_axis_1": ends[1][0],
            "end_slots_0": ends[0][1],
            "end_slots_1": ends[1][1],
            "row_ends": 0 if row_ends is None else self._address(row_ends),
            "checked": int(attribute is not None and is_unchecked(attribute)),
        }


def _check_rows(store: FlatStore, layout: Layout) -> None:
    """Check that row pointers ascend and that the arrays have these rows; a store can be constructed by hand.

    Raises:
        ValueError: a row pointer does not ascend, or an array has fewer rows than its row pointer counts.
    """
    count, ends = store.num_stored, dict[Axis, int]()
    for axis, pointer in store.row_pointers.items():
        fits = pointer.dtype is torch.int64 and pointer.shape == (count + 1,) and int(pointer[0]) == 0
        if not fits or bool((pointer[1:] < pointer[:-1]).any()):
            raise ValueError(f"The row pointer of {axis.label} does not ascend from 0 through {count:,} graphs.")
        ends[axis] = int(pointer[-1])
    for attribute in (slot.attribute for slot in layout.slots if slot.attribute is not None):
        shape, rows, steps = list(attribute.tensor.shape), ends[attribute.axis], attribute.increments
        if shape[attribute.dim] < rows:
            raise ValueError(f"{attribute.name!r} has shape {shape}; dimension {attribute.dim} needs {rows:,} rows.")
        if steps is not None and (steps.dtype is not torch.int64 or steps.dim() != 2 or len(steps) != count):
            raise ValueError(f"{attribute.name!r} has increments {list(steps.shape)}; pass int64 [{count}, n].")
    for key, row_ends in (store.row_ends or {}).items():
        nodes = ends[ends_of(Axis(Level.EDGE, key))[1]]
        if row_ends.dtype is not torch.int64 or row_ends.shape != (nodes,):
            raise ValueError(f"row_ends of {key} has shape {list(row_ends.shape)}; it must be int64 [{nodes}].")

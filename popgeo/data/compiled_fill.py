"""Fills the tensors of several batches with one call into the compiled library; `fill.py` defines what it does."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import GRAPHS
from popgeo.data.fill import fill
from popgeo.data.flat_store import FlatStore
from popgeo.data.slots import Kind, Layout, Slot
from popgeo.native import library

_ENTRY = ("popgeo_collate", (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64) + (ctypes.c_void_p, ctypes.c_int64) * 2)
_INTEGERS = (torch.int32, torch.int64)

# The fields of `Slot` in csrc/collate.cpp, in its order; each is a 64-bit integer or a pointer.
_FIELDS = (
    "kind",
    "axis",
    "num_slots",
    "fixed_rows",
    "outer",
    "inner",
    "element_bytes",
    "out_bytes",
    "source",
    "source_rows",
    "out",
    "batch_bytes",
    "pad",
    "increments",
    "increment_width",
    "spread",
    "end_axis_0",
    "end_axis_1",
    "end_slots_0",
    "end_slots_1",
    "row_ends",
)
_OUT = _FIELDS.index("out")


class Filler:
    """Fills batches of one dataset and one layout, with the compiled library where there is one."""

    def __init__(self, store: FlatStore, layout: Layout) -> None:
        self.store, self.layout = store, layout
        self.axes = list(store.row_pointers)
        self.kept: list[Tensor] = []  # tensors whose addresses the table holds
        self.row_pointers = np.array(
            [0 if axis == GRAPHS else self._address(rows.contiguous()) for axis, rows in store.row_pointers.items()],
            dtype=np.int64,
        )
        self.table = np.array([self._describe(slot) for slot in layout.slots], dtype=np.int64)
        self.can_be_compiled = all(
            slot.kind is not Kind.SHIFT or slot.attribute is None or slot.attribute.tensor.dtype in _INTEGERS
            for slot in layout.slots
        ) and all(slot.attribute is None or slot.attribute.tensor.device.type == "cpu" for slot in layout.slots)

    def __call__(self, rows: np.ndarray, ptr: np.ndarray, out: Sequence[Tensor]) -> None:
        """Writes batches into tensors, as `popgeo.data.fill.fill` does; the tensors may have room for more."""
        entry = self._entry()
        if entry is None:
            fill(self.store, self.layout, rows, ptr, [tensor[: len(ptr) - 1] for tensor in out])
            return
        rows, ptr = np.ascontiguousarray(rows, dtype=np.int64), np.ascontiguousarray(ptr, dtype=np.int64)
        table = self.table.copy()  # several threads may fill at once
        table[:, _OUT] = [tensor.data_ptr() for tensor in out]
        failed = entry(
            rows.ctypes.data,
            ptr.ctypes.data,
            len(ptr) - 1,
            self.row_pointers.ctypes.data,
            len(self.row_pointers),
            table.ctypes.data,
            len(table),
            self.layout.options.num_graphs,
        )
        if failed:
            raise MemoryError(f"No memory for the row numbers of a batch of {len(rows)} graphs.")

    def __reduce__(self) -> Any:
        return Filler, (self.store, self.layout)  # addresses mean nothing in another process

    def _entry(self) -> Callable[..., Any] | None:
        if not self.can_be_compiled:
            return None
        name, arguments = _ENTRY
        return library.function(name, (*arguments, ctypes.c_int64), ctypes.c_int)

    def _address(self, tensor: Tensor) -> int:
        self.kept.append(tensor)
        return tensor.data_ptr()

    def _describe(self, slot: Slot) -> list[int]:
        attribute = slot.attribute
        source = attribute.tensor if attribute is not None else torch.empty(0, dtype=slot.dtype)
        increments = attribute.increments if attribute is not None else None
        ends = self.store.row_ends[slot.store] if slot.kind is Kind.ROW_POINTER and self.store.row_ends else None
        empty = torch.empty((1, *slot.shape), dtype=slot.dtype)
        values = {
            "kind": int(slot.kind),
            "axis": self.axes.index(slot.axis),
            "num_slots": slot.num_slots,
            "fixed_rows": int(slot.fixed_rows),
            "outer": slot.outer,
            "inner": slot.inner,
            "element_bytes": source.element_size(),
            "out_bytes": empty.element_size(),
            "source": self._address(source),
            "source_rows": source.shape[attribute.dim] if attribute is not None else 0,
            "out": 0,
            "batch_bytes": empty.numel() * empty.element_size(),
            "pad": self._address(torch.zeros(1, dtype=source.dtype).fill_(slot.pad_value)),
            "increments": 0 if increments is None else self._address(increments.contiguous()),
            "increment_width": 0 if increments is None else increments.shape[1],
            "spread": int(slot.spread),
            "row_ends": 0 if ends is None else self._address(ends),
        }
        for i, (axis, number) in enumerate(slot.ends):
            values[f"end_axis_{i}"], values[f"end_slots_{i}"] = self.axes.index(axis), number
        return [values.get(name, 0) for name in _FIELDS]

"""Translates a chain into instructions on blocks of elements: loads, computations and stores."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Value
from popgeo.engine.fuse.chain import BLOCK, CODES, JOINING, OPERANDS, Chain, ElementPlace, Kind, Source

MAX_REGISTERS = 24  # as in chain.h
# Elements per chunk: with fewer, a second thread costs more than it saves. The order of sums depends on chunks alone.
_CHUNK, _MOST_CHUNKS = 16384, 32
_REGISTER, _DIRECT, _SCALAR, _STRIDED = range(4)
_LOADS = {torch.float32: "load_float", torch.bool: "load_bool", torch.int64: "load_int64", torch.int32: "load_int32"}
_VECTORS, _LAST_SCALAR, _FIRST_SCALAR = range(3)


def fits_registers(chain: Chain, values: Sequence[Value]) -> bool:
    """Return whether the registers suffice for all values that are alive at one time, for any places of the values."""
    if len(chain.steps) + len(chain.operands) <= MAX_REGISTERS:
        return True  # at most one register each; most chains are this short
    return BlockProgram(chain, values, {}).num_registers <= MAX_REGISTERS


class BlockProgram:
    """The instructions of a chain for each block of its elements.

    Args:
        chain: The chain to translate.
        values: The values of the graph.
        tensors: The tensors of values with a fixed place.

    Attributes:
        slots: Rows of `Slot` in chain.h.
        instructions: Rows of `Instruction` in chain.h; the first `num_invariant` are the same for each block.
        num_registers: Number of blocks of memory for intermediate values.
        domain: Rows and columns of the elements.
        block: Rows and columns of a block.
        group: Rows per edge; 0 if the chain does not work on edges.
        num_chunks: Number of parts for threads.
        partial_size: Number of partial sums of each chunk.
        sums_columns: Whether columns of a row are summed, so that a row must be within one chunk.
        number_slots: Slots of numbers, with the position of the number in the chain.
        value_slots: Slots in memory: the slot, the field that holds an address, and the value at that address.
    """

    def __init__(self, chain: Chain, values: Sequence[Value], tensors: Mapping[int, Tensor]) -> None:
        self._chain, self._values, self._tensors = chain, values, tensors
        self.places = [*chain.operands, *(place for _, place in chain.results)]
        sizes, strides = chain.collapsed([place.strides for place in self.places])
        rows, columns = (1,) * (2 - len(sizes)) + sizes
        self.group = rows if chain.of_edges else 0
        most = BLOCK // columns
        if chain.of_edges:
            rows, most = self.group * chain.shape[0], BLOCK // (self.group * columns) * self.group
        self.domain = rows, columns
        # The three strides of a place: from edge to edge, from row to row, from column to column.
        self._strides = {place: (0,) * (3 - len(own)) + own for place, own in zip(self.places, strides, strict=True)}
        self.block = (min(rows, most), columns) if columns <= BLOCK else (1, BLOCK)
        self._whole_rows = columns <= BLOCK
        self.slots: list[tuple[int, ...]] = []
        self.number_slots: list[tuple[int, int]] = []
        self.value_slots: list[tuple[int, int, int]] = []
        self._invariant: list[list[int]] = []
        self._main: list[list[int]] = []
        self._known: dict[Any, int] = {}  # slot of each source, by source and whether it is one number
        self.partial_size = 0
        self.sums_columns = 0
        self._write()
        self.num_invariant = len(self._invariant)
        self.num_registers = self._assign_registers()
        self.instructions = self._invariant + self._main
        parts = 1 if self._whole_rows or self.sums_columns else -(-columns // BLOCK)
        units = -(-rows // self.block[0]) * parts
        self.num_chunks = max(1, min(units, _MOST_CHUNKS, rows * columns // _CHUNK))

    def _write(self) -> None:
        """Write the instructions of all steps; store a result at the end if its place is still read."""
        chain = self._chain
        last_use = {s.index: k for k, step in enumerate(chain.steps) for s in step.operands if s.kind is Kind.VALUE}
        late: list[tuple[int, ElementPlace]] = []
        for k, step in enumerate(chain.steps):
            wanted = [place for number, place in chain.results if number == k]
            overwriting = [place for place in wanted if self._is_read_later(place, k, last_use)]
            stored = [place for place in wanted if place not in overwriting]
            if step.code not in JOINING:
                direct = next(filter(self._is_direct, stored), None)
                out = self._memory(direct) if direct is not None else self._new_register()
                self._compute(step.code, step.operands, out)
                self._known[Source(Kind.STEP, k), False] = out
                stored = [place for place in stored if place is not direct]
            for place in stored:
                self._store(k, place)
            late += [(k, place) for place in overwriting]
        for k, place in late:
            self._store(k, place)

    def _compute(self, code: str, operands: Sequence[Source], out: int) -> None:
        if code == "fill":
            self._main.append([CODES[code], 0, out, self._scalar(operands[0]), 0, 0])
            return
        form, scalar = _VECTORS, None
        if OPERANDS[code] > 1 and self._is_scalar(operands[-1]):
            form, scalar = _LAST_SCALAR, len(operands) - 1
        elif OPERANDS[code] == 2 and self._is_scalar(operands[0]):
            form, scalar = _FIRST_SCALAR, 0
        taken = [self._scalar(o) if at == scalar else self._vector(o) for at, o in enumerate(operands)]
        self._main.append([CODES[code], form, out, *taken, *[taken[0]] * (3 - len(taken))])

    def _is_scalar(self, source: Source) -> bool:
        if source.kind is Kind.NUMBER:
            return True
        if source.kind is Kind.STEP or self.domain == (1, 1):
            return False
        place = self._chain.operands[source.index]
        return self._is_one(place) and self._values[place.value].dtype == torch.float32

    def _is_one(self, place: ElementPlace) -> bool:
        return place.index is None and not any(self._strides[place])

    def _scalar(self, source: Source) -> int:
        """Return the slot of a number that is the same for all elements."""
        if (source, True) not in self._known:
            if source.kind is Kind.NUMBER:
                slot = self._slot(_SCALAR, 0, 0, 0)
                self.number_slots.append((slot, source.index))
            else:
                slot = self._memory(self._chain.operands[source.index], kind=_SCALAR)
            self._known[source, True] = slot
        return self._known[source, True]

    def _vector(self, source: Source) -> int:
        """Return the slot of a source with a number for each element; load it if it is not in a block yet."""
        key = source, False
        if key in self._known:
            return self._known[key]
        if source.kind is Kind.NUMBER:
            slot = self._new_register()
            self._invariant.append([CODES["fill"], 0, slot, self._scalar(source), 0, 0])
        else:
            place = self._chain.operands[source.index]
            if self._is_direct(place):
                slot = self._memory(place)
            else:
                slot, (edge, row, _) = self._new_register(), self._strides[place]
                same = edge == 0 and place.index is None if self.group else row == 0 and self._whole_rows
                same |= self._is_one(place)
                load = CODES[_LOADS[self._values[place.value].dtype]]
                target = self._invariant if same else self._main
                target.append([load, 0, slot, self._memory(place, kind=_STRIDED), 0, 0])
        self._known[key] = slot
        return slot

    def _store(self, number: int, place: ElementPlace) -> None:
        """Store the result of a step at its place."""
        step = self._chain.steps[number]
        if step.code in JOINING:
            self._store_sum(step.code, step.operands[0], place)
            return
        code = "store_bool" if self._values[place.value].dtype == torch.bool else "store_float"
        slot = self._known[Source(Kind.STEP, number), False]
        self._main.append([CODES[code], 0, self._memory(place, kind=_STRIDED), slot, 0, 0])

    def _store_sum(self, code: str, source: Source, place: ElementPlace) -> None:
        edge, row, column = self._strides[place]
        if code == "sum":
            outer = edge if self.group else row
            code = "sum_columns" if outer else "sum_rows" if row or column else "sum_all"
        self.sums_columns |= code == "sum_columns"
        target = self._memory(place, kind=_STRIDED)
        self._main.append([CODES[code], 0, target, self._vector(source), 0, self.partial_size])
        self.partial_size += self.domain[1] * (self.group or 1) if code == "sum_rows" else 1

    def _is_direct(self, place: ElementPlace) -> bool:
        """Return whether the elements of a place are contiguous like a block, so that no load or store is needed."""
        edge, row, column = self._strides[place]
        if self._values[place.value].dtype != torch.float32 or place.index is not None or self._chain.order is not None:
            return False
        if self.group:
            rows, columns = self.group, self.domain[1]
            return edge == rows * columns and (row == columns or rows == 1) and (column == 1 or columns == 1)
        if self.domain == (1, 1):
            return True
        return column == 1 and (self.domain[0] == 1 or not self._whole_rows or row == self.domain[1])

    def _is_read_later(self, result: ElementPlace, step: int, last_use: Mapping[int, int]) -> bool:
        """Return whether the result's place still holds a value that the chain reads later.

        Args:
            result: The place of the result.
            step: The number of the step that makes it.
            last_use: The last step that reads each operand.
        """
        last = [last_use.get(index, -1) for index in range(len(self._chain.operands))]
        return any(
            read >= step and self._overlap(result, operand)
            and (read > step or self._strides[result] != self._strides[operand])
            for read, operand in zip(last, self._chain.operands, strict=True)
        )  # fmt: skip

    def _overlap(self, one: ElementPlace, other: ElementPlace) -> bool:
        first, second = self._values[one.value], self._values[other.value]
        if first.storage == second.storage:
            return True
        if one.value not in self._tensors or other.value not in self._tensors:
            return False
        a, b = self._tensors[one.value].data_ptr(), self._tensors[other.value].data_ptr()
        return a < b + _extent(second) and b < a + _extent(first)

    def _memory(self, place: ElementPlace, kind: int = _DIRECT) -> int:
        edge, row, column = self._strides[place]
        if self.group:  # the stride of a single row or column is arbitrary
            row = self.domain[1] if self.group == 1 else row
            column = 1 if self.domain[1] == 1 else column
        named = {1: place.value} if place.index is None else {1: place.value, 5: place.index}
        at = {field: self._tensors[v].data_ptr() for field, v in named.items() if v in self._tensors}
        slot = self._slot(kind, at.get(1, 0), row, column, edge, at.get(5, 0))
        self.value_slots += [(slot, field, v) for field, v in named.items()]
        return slot

    def _slot(self, kind: int, base: int, row: int, column: int, edge: int = 0, index: int = 0) -> int:
        self.slots.append((kind, base, row, column, edge, index))
        return len(self.slots) - 1

    def _new_register(self) -> int:
        return self._slot(_REGISTER, 0, -1, 0)

    def _assign_registers(self) -> int:
        """Assign a block of memory to each register slot, reusing blocks after their last use; return their number."""
        used = [_slots_of(instruction) for instruction in self._invariant + self._main]
        last: dict[int, int] = {}
        for at, slots in enumerate(used):
            last |= dict.fromkeys(slots, at)
        last |= dict.fromkeys((instruction[2] for instruction in self._invariant), len(used))
        free: list[int] = []
        count = 0
        for at, (out, *operands) in enumerate(used):
            for slot in (out, *dict.fromkeys(operands)):
                kind, _, row, *_ = self.slots[slot]
                if kind != _REGISTER:
                    continue
                if slot == out and row < 0:
                    count, block = (count, free.pop()) if free else (count + 1, count)
                    self.slots[slot] = _REGISTER, 0, block, 0, 0, 0
                if last[slot] == at:
                    free.append(self.slots[slot][2])
        return count


def _slots_of(instruction: Sequence[int]) -> list[int]:
    """Return the result's slot and the operands' slots; a load or store has one operand."""
    code, _, out, *operands = instruction
    return [out, *operands] if code < CODES["fill"] else [out, operands[0]]


def _extent(value: Value) -> int:
    return value.end - value.offset * value.dtype.itemsize

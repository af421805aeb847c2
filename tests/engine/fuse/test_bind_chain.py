"""A stand-in for the compiled library checks the structures that it gets for a chain."""

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from popgeo.capture.op_graph import Input, Number, Op, OpGraph, Ref, Role, Value
from popgeo.engine.fuse import bind_chain
from popgeo.engine.fuse.bind_chain import prepare_chain
from popgeo.engine.fuse.block_program import BlockProgram
from popgeo.engine.fuse.chain import CHAIN, Chain, ElementPlace, Kind, Source, Step
from popgeo.engine.fuse.prepared import late_arguments
from popgeo.engine.out_variants import is_elementwise

SHAPE, STRIDES = (2, 3), (3, 1)
FIELDS = (
    "slots", "instructions", "partial", "num_slots", "num_instructions", "num_invariant", "rows", "columns",
    "block_rows", "block_columns", "num_chunks", "partial_size", "sums_columns", "group", "order",
)  # fmt: skip


class StandIn:
    """A stand-in for the library that notes its arguments, and may write to a value."""

    def __init__(self) -> None:
        self.header: dict[str, int] = {}
        self.slots: list[list[int]] = []
        self.writes: Callable[[], None] = lambda: None

    def __call__(self, packed: bytes) -> int:
        self.header = dict(zip(FIELDS, struct.unpack("15q", packed), strict=True))
        size = 6 * self.header["num_slots"]
        memory = (ctypes.c_int64 * size).from_address(self.header["slots"])
        self.slots = np.ctypeslib.as_array(memory).reshape(-1, 6).tolist()
        self.writes()
        return 0


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(bind_chain.library, "packed", lambda name: stand_in if name == "popgeo_chain" else None)
    return stand_in


def graph_and_op(numbers: tuple[float | Number, ...], in_place: bool = False) -> tuple[OpGraph, Op, BlockProgram]:
    """Return a chain for `(a * first + b * second)` and its sum over columns; if asked for, it updates b in place."""
    values = tuple(
        Value(shape=SHAPE, stride=STRIDES, offset=0, dtype=torch.float32, storage=v, producer=None) for v in range(4)
    )
    a, b, out = (ElementPlace(value=v, strides=STRIDES) for v in range(3))
    summed = ElementPlace(value=3, strides=(1, 0))
    value, step, number = (lambda i, kind=kind: Source(kind, i) for kind in (Kind.VALUE, Kind.STEP, Kind.NUMBER))
    chain = Chain(
        shape=SHAPE,
        steps=(
            Step("mul", (value(0), number(0))), Step("mul", (value(1), number(1))), Step("add", (step(0), step(1))),
            Step("sum", (step(2),)),
        ),
        operands=(a, b), numbers=numbers, results=((2, out), (3, summed), *(((1, b),) if in_place else ())), num_ops=4,
    )  # fmt: skip
    late = [one for one in numbers if isinstance(one, Number)]
    op = Op(target=CHAIN, args=(chain, [Ref(0), Ref(1)], late), outputs=(2, 3), writes=(1,) if in_place else ())
    inputs = {Input(Role.ARGUMENT, str(v)): v for v in range(4)}
    graph = OpGraph(ops=(), values=values, inputs=inputs, outputs=())
    return graph, op, BlockProgram(chain, values, {})


def memory() -> dict[int, Tensor]:
    return {v: torch.full(SHAPE, float(v)) for v in range(4)}


def number_at(address: int) -> float:
    assert address
    return ctypes.c_float.from_address(address).value


def test_a_chain_in_fixed_memory_is_packed_once(native):
    graph, op, program = graph_and_op((2.0, 0.5))
    tensors = memory()
    call: Any = prepare_chain(graph, op, tensors)
    call()
    h = native.header
    assert (h["num_slots"], h["num_instructions"], h["num_invariant"]) == (len(program.slots), 4, 0)
    assert (h["rows"], h["columns"], h["block_rows"], h["block_columns"]) == (2, 3, 2, 3)
    assert (h["num_chunks"], h["partial_size"], h["sums_columns"]) == (1, 1, True)
    assert ctypes.c_double.from_address(h["partial"]).value == 0
    instructions = (ctypes.c_int64 * 24).from_address(h["instructions"])
    assert np.ctypeslib.as_array(instructions).reshape(4, 6).tolist() == program.instructions
    assert [number_at(native.slots[slot][1]) for slot, _ in program.number_slots] == [2.0, 0.5]
    where = {v: native.slots[slot][1] for slot, _, v in program.value_slots}
    assert where == {v: tensor.data_ptr() for v, tensor in tensors.items()}


def test_there_is_room_for_the_unfinished_sums_of_each_chunk(native):
    shape = (20_000, 3)
    place, result = ElementPlace(value=0, strides=(3, 1)), ElementPlace(value=1, strides=(0, 1))
    chain = Chain(
        shape=shape, steps=(Step("sum", (Source(Kind.VALUE, 0),)),), operands=(place,), numbers=(),
        results=((0, result),), num_ops=1,
    )  # fmt: skip
    values = tuple(
        Value(shape=shape, stride=p.strides, offset=0, dtype=torch.float32, storage=p.value, producer=None)
        for p in (place, result)
    )
    graph = OpGraph(ops=(), values=values, inputs={Input(Role.ARGUMENT, str(v)): v for v in range(2)}, outputs=())
    op = Op(target=CHAIN, args=(chain, [Ref(0)], []), outputs=(1,))
    call: Any = prepare_chain(graph, op, {0: torch.ones(shape), 1: torch.ones(3)})
    call()
    assert (native.header["num_chunks"], native.header["partial_size"]) == (3, 3)
    assert [*(ctypes.c_double * 9).from_address(native.header["partial"])] == [0.0] * 9


def test_numbers_that_change_are_put_where_they_belong(native):
    graph, op, program = graph_and_op((2.0, Number(0, 9.0)))
    call: Any = prepare_chain(graph, op, memory())
    for number in (7.0, 8.0):
        call(number)
        assert [number_at(native.slots[slot][1]) for slot, _ in program.number_slots] == [2.0, number]
    graph, op, program = graph_and_op((Number(0, 9.0), Number(1, 9.0)))
    call = prepare_chain(graph, op, memory())
    call(3.0, 4.0)
    assert [number_at(native.slots[slot][1]) for slot, _ in program.number_slots] == [3.0, 4.0]


def places(native: StandIn, program: BlockProgram, v: int) -> set[int]:
    return {native.slots[slot][1] for slot, _, value in program.value_slots if value == v}


@pytest.mark.parametrize("numbers", [(2.0, 0.5), (2.0, Number(0, 9.0))])
def test_operands_that_come_late_are_read_where_they_lie(native, numbers):
    graph, op, program = graph_and_op(numbers)
    tensors = memory()
    late = tensors.pop(1)
    call: Any = prepare_chain(graph, op, tensors)
    for given in (late, late.clone()):
        call(given, *([4.0] if isinstance(numbers[1], Number) else []))
        assert places(native, program, 1) == {given.data_ptr()}
        assert places(native, program, 0) == {tensors[0].data_ptr()}
        assert number_at(native.slots[program.number_slots[0][0]][1]) == 2.0


@pytest.mark.parametrize("in_place", [False, True])
def test_operands_of_another_layout_are_copied_and_brought_back_where_they_change(native, in_place):
    graph, op, program = graph_and_op((2.0, 0.5), in_place)
    tensors = memory()
    del tensors[1]
    call: Any = prepare_chain(graph, op, tensors)
    given = torch.arange(6.0).view(3, 2).t()
    before = given.clone()
    seen: list[list[float]] = []

    def write_there() -> None:
        (address,) = {native.slots[slot][1] for slot, _, value in program.value_slots if value == 1}
        assert address not in (0, given.data_ptr())
        copy = np.ctypeslib.as_array((ctypes.c_float * 6).from_address(address))
        seen.append(copy.tolist())
        copy[:] = 5

    native.writes = write_there
    call(given)
    assert seen == [[0, 2, 4, 1, 3, 5]]  # row after row
    assert torch.equal(given, torch.full_like(given, 5) if in_place else before)


def test_a_result_may_take_the_place_of_an_operand_of_a_chain():
    assert is_elementwise(Op(target=CHAIN, args=(), outputs=()))
    assert not is_elementwise(Op(target="popgeo.interaction.default", args=(), outputs=()))


def test_what_a_call_is_given_late_in_order():
    first, second, third = (Number(slot, 1.0) for slot in range(3))
    op = Op(
        target="", args=(Ref(3), [first, (Ref(1), second)], 2.0, Ref(3), Ref(2)), kwargs={"alpha": third}, outputs=()
    )
    assert late_arguments(op, {2: torch.ones(1)}) == ([3, 1], [first, second, third])
    assert late_arguments(op, {v: torch.ones(1) for v in (1, 2, 3)}) == ([], [first, second, third])

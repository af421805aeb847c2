"""The structures that the compiled library gets for a chain."""

import ctypes

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.op_graph import Input, Number, Op, OpGraph, Ref, Role, Value
from popgeo.engine.fuse.block_program import BlockProgram
from popgeo.engine.fuse.chain import CHAIN, Chain, ElementPlace, Kind, Source, Step
from popgeo.engine.out_variants import is_elementwise
from popgeo.engine.program.lower_fused import lower_chain
from popgeo.engine.program.native_call import NativeCall

SHAPE, STRIDES = (2, 3), (3, 1)
FIELDS = (
    "slots", "instructions", "partial", "num_slots", "num_instructions", "num_invariant", "rows", "columns",
    "block_rows", "block_columns", "num_chunks", "partial_size", "sums_columns", "group", "order",
)  # fmt: skip


def header_of(call: NativeCall) -> dict[str, int]:
    return dict(zip(FIELDS, call.words.tolist(), strict=True))


def slots_of(call: NativeCall) -> list[list[int]]:
    header = header_of(call)
    memory = (ctypes.c_int64 * (6 * header["num_slots"])).from_address(header["slots"])
    return np.ctypeslib.as_array(memory).reshape(-1, 6).tolist()


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


def test_a_chain_is_packed_with_the_addresses_of_its_values():
    graph, op, program = graph_and_op((2.0, 0.5))
    tensors = memory()
    call = lower_chain(graph, op, tensors)
    h, slots = header_of(call), slots_of(call)
    assert (h["num_slots"], h["num_instructions"], h["num_invariant"]) == (len(program.slots), 4, 0)
    assert (h["rows"], h["columns"], h["block_rows"], h["block_columns"]) == (2, 3, 2, 3)
    assert (h["num_chunks"], h["partial_size"], h["sums_columns"]) == (1, 1, True)
    assert ctypes.c_double.from_address(h["partial"]).value == 0
    instructions = (ctypes.c_int64 * 24).from_address(h["instructions"])
    assert np.ctypeslib.as_array(instructions).reshape(4, 6).tolist() == program.instructions
    assert [number_at(slots[slot][1]) for slot, _ in program.number_slots] == [2.0, 0.5]
    where = {v: slots[slot][1] for slot, _, v in program.value_slots}
    assert where == {v: tensor.data_ptr() for v, tensor in tensors.items()}


def test_there_is_room_for_the_unfinished_sums_of_each_chunk():
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
    header = header_of(call := lower_chain(graph, op, {0: torch.ones(shape), 1: torch.ones(3)}))
    assert (header["num_chunks"], header["partial_size"]) == (3, 3)
    assert [*(ctypes.c_double * 9).from_address(header["partial"])] == [0.0] * 9
    del call


def test_numbers_that_change_have_their_places():
    graph, op, program = graph_and_op((2.0, Number(7, 9.0)))
    call = lower_chain(graph, op, memory())
    ((array, index, slot),) = call.numbers
    assert slot == 7
    array[index] = 8.0
    assert [number_at(slots_of(call)[slot][1]) for slot, _ in program.number_slots] == [2.0, 8.0]


def test_a_result_may_take_the_place_of_an_operand_of_a_chain():
    assert is_elementwise(Op(target=CHAIN, args=(), outputs=()))
    assert not is_elementwise(Op(target="popgeo.interaction.default", args=(), outputs=()))

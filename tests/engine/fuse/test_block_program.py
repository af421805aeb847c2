"""Instructions of a handwritten chain, on any memory, give the same results as its steps one by one."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pytest
import torch
from torch import Tensor

from popgeo.capture.op_graph import Input, Number, Op, OpGraph, Ref, Role, Value
from popgeo.engine.fuse.block_program import BLOCK, MAX_REGISTERS, BlockProgram, _extent, fits_registers
from popgeo.engine.fuse.chain import CHAIN, CODES, Chain, ElementPlace, Kind, Source, Step
from popgeo.engine.program.lower_fused import lower_chain
from popgeo.native import library

native = pytest.mark.skipif(not library.is_available(), reason="joined operations need the compiled library")

# On small whole numbers each is exact, and so is every sum.
STEPS: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "neg": (1, torch.neg),
    "abs": (1, torch.abs),
    "add": (2, torch.add),
    "sub": (2, torch.sub),
    "min": (2, torch.minimum),
    "gt": (2, lambda a, b: (a > b).float()),
    "where": (3, lambda a, b, c: torch.where(a != 0, b, c)),
    "fma": (3, lambda a, b, c: a + b * c),
}
TYPES = (torch.float32, torch.float32, torch.float32, torch.bool, torch.int64, torch.int32)
SHAPES = ((), (6,), (2, 5), (3, 4), (40, 30), (1500,), (2, 1100), (5, 1024), (3, 12000))


class Program:
    """Memory, and a chain on it that grows step by step."""

    def __init__(self, shape: tuple[int, ...], draw: random.Random) -> None:
        self.shape, self.draw = shape, draw
        self.values: list[Value] = []
        self.tensors: list[Tensor] = []
        self.operands: list[ElementPlace] = []
        self.steps: list[Step] = []
        self.results: list[tuple[int, ElementPlace]] = []
        self.given_numbers = [draw.randint(-3, 3) for _ in range(2)]  # some only when the chain runs
        self.numbers = [Number(i, 99.0) if draw.random() < 0.3 else float(n) for i, n in enumerate(self.given_numbers)]
        self.storages = count()

    def new(self, dtype: torch.dtype, dims: Sequence[int], low: int = -3) -> ElementPlace:
        """Return new memory with dimensions in any order; other dimensions than `dims` share one number."""
        draw = self.draw
        strides, step = [0] * len(self.shape), 1 + draw.choice((0, 0, 0, 1))
        for d in draw.choice((sorted(dims), sorted(dims, reverse=True), sorted(dims, reverse=True))):
            strides[d], step = step, step * self.shape[d] + draw.choice((0, 0, 0, 2))
        offset = draw.choice((0, 0, 4))
        memory = torch.randint(low, 4, (offset + step,)).to(dtype)
        return self.known(memory.as_strided(self.shape, strides, offset), next(self.storages))

    def known(self, tensor: Tensor, storage: int) -> ElementPlace:
        self.tensors.append(tensor)
        self.values.append(
            Value(
                shape=self.shape, stride=tensor.stride(), offset=tensor.storage_offset(), dtype=tensor.dtype,
                storage=storage, producer=None,
            )
        )  # fmt: skip
        return ElementPlace(value=len(self.values) - 1, strides=tensor.stride())

    def operand(self) -> ElementPlace:
        dims = [d for d in range(len(self.shape)) if self.draw.random() < 0.7]
        place = self.new(self.draw.choice(TYPES), dims)
        self.operands.append(place)
        return place

    def sources(self) -> list[Source]:
        numbers = [Source(Kind.NUMBER, i) for i in range(2)]
        steps = [Source(Kind.STEP, i) for i, step in enumerate(self.steps) if step.code != "sum"]
        return [*numbers, *(Source(Kind.VALUE, i) for i in range(len(self.operands))), *steps, *steps[-2:]]

    def step(self) -> None:
        code = self.draw.choice([*STEPS, "fill"])
        if code == "fill":
            self.steps.append(Step(code, (Source(Kind.NUMBER, self.draw.randrange(2)),)))
            return
        chosen = self.draw.choices(self.sources(), k=STEPS[code][0])
        if code == "fma":  # products of what was given only, so that numbers stay small
            chosen[1:] = self.draw.choices([one for one in self.sources() if one.kind is not Kind.STEP], k=2)
        self.steps.append(Step(code, tuple(chosen)))

    def results_of(self, step: int, taken: set[int]) -> None:
        """Store a step nowhere, in new memory, in the memory of an operand, or as sums."""
        whole = range(len(self.shape))
        for _ in range(self.draw.choice((0, 1, 1, 2))):
            self.results.append((step, self.new(self.draw.choice((torch.float32,) * 3 + (torch.bool,)), whole)))
        for index, place in enumerate(self.operands):
            value, memory = self.values[place.value], self.tensors[place.value]
            in_place = all(place.strides) and value.dtype == torch.float32 and index not in taken
            if in_place and self.draw.random() < 0.4:
                taken.add(index)
                # By name, by another name of the same storage, or by memory that the graph does not know to be one.
                storage = self.draw.choice((value.storage, next(self.storages)))
                again = place if self.draw.random() < 0.3 else self.known(memory, storage)
                self.results.append((step, again))
        if self.shape and self.draw.random() < 0.4:
            self.steps.append(Step("sum", (self.draw.choice(self.sources()),)))
            dims = self.draw.sample(whole, self.draw.randrange(len(self.shape)))
            self.results.append((len(self.steps) - 1, self.new(torch.float32, dims)))

    def chain(self) -> Chain:
        return Chain(
            shape=self.shape, steps=tuple(self.steps), operands=tuple(self.operands), numbers=tuple(self.numbers),
            results=tuple(self.results), num_ops=len(self.steps),
        )  # fmt: skip

    def expected(self) -> list[Tensor]:
        """Return the expected content of each result, from the operands before the run."""
        before = [self.tensors[place.value].float() for place in self.operands]
        done: list[Tensor] = []

        def of(source: Source) -> Tensor:
            if source.kind is Kind.NUMBER:
                return torch.full(self.shape, float(self.given_numbers[source.index]))
            return (before if source.kind is Kind.VALUE else done)[source.index]

        for step in self.steps:
            given = [of(source) for source in step.operands]
            done.append(given[0] if step.code in ("sum", "fill") else STEPS[step.code][1](*given))
        found = []
        for number, place in self.results:
            result = done[number]
            if self.steps[number].code == "sum":
                summed = [d for d, stride in enumerate(place.strides) if stride == 0]
                result = result.sum(summed, keepdim=True).expand(self.shape)
            found.append(result != 0 if self.values[place.value].dtype == torch.bool else result)
        return found


def run(program: Program) -> None:
    """Run the chain on its memory."""
    chain, tensors = program.chain(), dict(enumerate(program.tensors))
    results = tuple(place.value for _, place in chain.results)
    op = Op(target=CHAIN, args=(chain, [Ref(place.value) for place in chain.operands], []), outputs=results)
    inputs = {Input(Role.ARGUMENT, str(v)): v for v in tensors}
    graph = OpGraph(ops=(), values=tuple(program.values), inputs=inputs, outputs=())
    call = lower_chain(graph, op, tensors)
    for array, index, slot in call.numbers:
        array[index] = program.given_numbers[slot]
    native = library.packed(call.function)
    assert native is not None
    native(call.words.tobytes())


@native
def test_any_chain_gives_what_its_steps_give():
    for seed in range(200):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        program = Program(draw.choice(SHAPES), draw)
        for _ in range(draw.randint(1, 4)):
            program.operand()
        taken: set[int] = set()
        for _ in range(draw.randint(1, 7)):
            program.step()
            program.results_of(len(program.steps) - 1, taken)
        assert fits_registers(program.chain(), program.values)
        expected = [result.clone() for result in program.expected()]
        run(program)
        for (_, place), want in zip(program.results, expected, strict=True):
            assert torch.equal(program.tensors[place.value], want), f"seed {seed}: {program.chain().steps}"


FLOAT = torch.float32


def written_out(
    shape: tuple[int, ...],
    operands: Sequence[tuple[torch.dtype, tuple[int, ...]]],
    steps: Sequence[Step],
    results: Sequence[tuple[int, torch.dtype, tuple[int, ...]]] = (),
) -> tuple[Chain, list[Value]]:
    """Return a program without memory, in which each value has its own storage."""
    kinds = [*operands, *(result[1:] for result in results)]
    values = [
        Value(shape=shape, stride=strides, offset=0, dtype=dtype, storage=storage, producer=None)
        for storage, (dtype, strides) in enumerate(kinds)
    ]
    places = [ElementPlace(value=v, strides=value.stride) for v, value in enumerate(values)]
    first = len(operands)
    chain = Chain(
        shape=shape, steps=tuple(steps), operands=tuple(places[:first]), numbers=(2.0,), num_ops=len(steps),
        results=tuple((step, place) for (step, _, _), place in zip(results, places[first:], strict=True)),
    )  # fmt: skip
    return chain, values


def value(index: int) -> Source:
    return Source(Kind.VALUE, index)


def step(index: int) -> Source:
    return Source(Kind.STEP, index)


def test_instructions_written_out_by_hand():
    two = Source(Kind.NUMBER, 0)
    operands = [(FLOAT, (3, 1)), (torch.bool, (3, 1)), (FLOAT, (0, 0)), (FLOAT, (0, 1)), (torch.int64, (1, 2))]
    steps = [
        Step("add", (value(0), value(2))),
        Step("where", (value(1), step(0), two)),
        Step("mul", (two, value(3))),
        Step("sub", (step(1), step(2))),
        *(Step("sum", (step(3),)) for _ in range(3)),
        Step("neg", (value(4),)),
        Step("fill", (two,)),
    ]
    results = [
        (3, FLOAT, (3, 1)), (4, FLOAT, (0, 1)), (5, FLOAT, (0, 0)), (6, FLOAT, (1, 0)), (7, torch.bool, (3, 1)),
        (8, FLOAT, (6, 1)),
    ]  # fmt: skip
    program = BlockProgram(*written_out((2, 3), operands, steps, results), {})
    register, direct, scalar, strided = range(4)
    assert named(program) == [
        ["load_float", 0, 8, 9, 0, 0],  # the same row for all: once
        ["add", 1, 0, 1, 2, 1],
        ["load_bool", 0, 4, 5, 0, 0],
        ["where", 1, 3, 4, 0, 6],
        ["mul", 2, 7, 6, 8, 6],
        ["sub", 0, 10, 3, 7, 3],  # straight into the result
        ["sum_rows", 0, 11, 10, 0, 0],
        ["sum_all", 0, 12, 10, 0, 3],  # after the three sums of the columns
        ["sum_columns", 0, 13, 10, 0, 4],
        ["load_int64", 0, 15, 16, 0, 0],
        ["neg", 0, 14, 15, 15, 15],
        ["store_bool", 0, 17, 14, 0, 0],
        ["fill", 0, 18, 6, 0, 0],
        ["store_float", 0, 19, 18, 0, 0],
    ]
    # The row keeps the first register; the sum, the mask and what `where` makes are alive at once.
    assert program.num_registers == 4
    assert [slot[:4] for slot in program.slots] == [
        (register, 0, 1, 0), (direct, 0, 3, 1), (scalar, 0, 0, 0), (register, 0, 3, 0), (register, 0, 2, 0),
        (strided, 0, 3, 1), (scalar, 0, 0, 0), (register, 0, 1, 0), (register, 0, 0, 0), (strided, 0, 0, 1),
        (direct, 0, 3, 1), (strided, 0, 0, 1), (strided, 0, 0, 0), (strided, 0, 1, 0), (register, 0, 3, 0),
        (register, 0, 1, 0), (strided, 0, 1, 2), (strided, 0, 3, 1), (register, 0, 3, 0), (strided, 0, 6, 1),
    ]  # fmt: skip
    assert (program.num_invariant, program.partial_size, program.sums_columns) == (1, 5, True)
    assert program.number_slots == [(6, 0)]
    assert [(slot, value) for slot, _, value in program.value_slots] == [
        (1, 0), (2, 2), (5, 1), (9, 3), (10, 5), (11, 6), (12, 7), (13, 8), (16, 4), (17, 9), (19, 10)
    ]  # fmt: skip


def named(program: BlockProgram) -> list[list[str | int]]:
    names = {code: name for name, code in CODES.items()}
    return [[names[code], *rest] for code, *rest in program.instructions]


def test_what_is_the_same_for_all_elements_is_loaded_once():
    steps = [Step("where", (Source(Kind.NUMBER, 0), value(0), value(0))), Step("neg", (value(1),))]
    program = BlockProgram(*written_out((2, 3), [(FLOAT, (3, 1)), (FLOAT, (0, 0))], steps), {})
    assert named(program) == [
        ["fill", 0, 1, 2, 0, 0],
        ["load_float", 0, 5, 6, 0, 0],
        ["where", 0, 0, 1, 3, 3],
        ["neg", 0, 4, 5, 5, 5],  # with one operand there is no form that takes one number for all
    ]
    assert program.slots[3][2:4] == (0, 1)  # the two rows lie as one


def test_a_single_element_is_read_where_it_lies():
    program = BlockProgram(*written_out((), [(FLOAT, ())] * 2, [Step("add", (value(0), value(1)))]), {})
    assert named(program) == [["add", 0, 0, 1, 2, 1]]


def test_what_is_read_later_is_overwritten_last():
    steps = [Step("sum", (value(0),)), Step("neg", (value(1),))]
    chain, values = written_out((2, 3), [(FLOAT, (3, 1)), (FLOAT, (1, 0))], steps, [(0, FLOAT, (1, 0))])
    sums_at_once, sums_at_last = (
        [i[0] for i in named(BlockProgram(chain, v, {}))] for v in (values, shared(values, 1, 2))
    )
    assert sums_at_once == ["sum_columns", "load_float", "neg"]
    assert sums_at_last == ["load_float", "neg", "sum_columns"]


def test_a_result_in_the_memory_of_an_operand_of_another_layout_is_written_last():
    chain, values = written_out((2, 3), [(FLOAT, (0, 1))], [Step("neg", (value(0),))], [(0, FLOAT, (3, 1))])
    assert [i[0] for i in named(BlockProgram(chain, values, {}))] == ["load_float", "neg"]
    assert [i[0] for i in named(BlockProgram(chain, shared(values, 0, 1), {}))] == ["load_float", "neg", "store_float"]


def test_a_result_in_the_place_of_its_operand_is_written_at_once():
    steps = [Step("neg", (value(0),)), Step("abs", (step(0),))]
    chain, values = written_out((2, 3), [(FLOAT, (3, 1))], steps, [(0, FLOAT, (3, 1))])
    assert [i[0] for i in named(BlockProgram(chain, shared(values, 0, 1), {}))] == ["neg", "abs"]
    steps.append(Step("exp", (value(0),)))  # which reads it once more
    chain, values = written_out((2, 3), [(FLOAT, (3, 1))], steps, [(0, FLOAT, (3, 1))])
    assert [i[0] for i in named(BlockProgram(chain, shared(values, 0, 1), {}))] == ["neg", "abs", "exp", "store_float"]


@pytest.mark.parametrize(
    ("operand", "result", "meet"), [(0, 3, False), (0, 2, True), (6, 0, False), (5, 0, True), (2, 0, True)]
)
def test_memory_that_the_graph_does_not_know_to_be_one_counts_from_the_first_shared_element(operand, result, meet):
    memory = torch.zeros(12)
    chain, values = written_out((2, 3), [(FLOAT, (0, 1))], [Step("neg", (value(0),))], [(0, FLOAT, (3, 1))])
    tensors = {0: memory[operand:].as_strided((2, 3), (0, 1)), 1: memory[result:].as_strided((2, 3), (3, 1))}
    found = [i[0] for i in named(BlockProgram(chain, values, tensors))]
    assert found == (["load_float", "neg", "store_float"] if meet else ["load_float", "neg"])
    assert [i[0] for i in named(BlockProgram(chain, values, {0: tensors[0]}))] == ["load_float", "neg"]


def shared(values: list[Value], one: int, other: int) -> list[Value]:
    return [replace(v, storage=values[one].storage) if i == other else v for i, v in enumerate(values)]


def test_the_extent_of_a_value_starts_at_its_first_element():
    assert _extent(Value(shape=(2, 3), stride=(4, 1), offset=5, dtype=FLOAT, storage=0, producer=None)) == 7 * 4


@pytest.mark.parametrize(
    ("shape", "operand", "result", "block", "chunks"),
    [
        ((), (), None, (1, 1), 1),
        ((1024,), (1,), None, (1, 1024), 1),
        ((100_000,), (1,), None, (1, BLOCK), 6),  # 98 blocks, 6 times 16,384 elements
        ((1000, 1000), (1, 1000), None, (1, 1000), 32),  # no more than 32
        ((10_000, 5), (0, 1), None, (204, 5), 3),
        ((16_384, 2), (0, 1), None, (512, 2), 2),
        ((2, 40_000), (0, 1), None, (1, BLOCK), 4),
        ((2, 40_000), (0, 1), (1, 0), (1, BLOCK), 2),  # a row that is summed belongs to one chunk
        ((2, 40_000), (0, 1), (0, 0), (1, BLOCK), 4),
    ],
)
def test_blocks_and_the_chunks_that_threads_share_out(shape, operand, result, block, chunks):
    results = [] if result is None else [(0, FLOAT, result)]
    only = Step("sum" if results else "neg", (value(0),))
    program = BlockProgram(*written_out(shape, [(FLOAT, operand)], [only], results), {})
    assert (program.block, program.num_chunks) == (block, chunks)
    assert program.sums_columns == (result == (1, 0))


@pytest.mark.parametrize(("alive", "fits"), [(MAX_REGISTERS - 1, True), (MAX_REGISTERS, False)])
def test_a_block_of_each_value_that_is_alive_needs_a_register(alive, fits):
    # Whole numbers are loaded into a register, from which each of the negatives is made: one more than are kept.
    steps = [Step("neg", (value(i),)) for i in range(alive)]
    steps.append(Step("add", (step(0), step(1))))
    steps += [Step("add", (step(alive + i), step(i + 2))) for i in range(alive - 2)]
    chain, values = written_out((2, 4), [(torch.int64, (5, 1))] * alive, steps)
    assert BlockProgram(chain, values, {}).num_registers == alive + 1
    assert fits_registers(chain, values) is fits

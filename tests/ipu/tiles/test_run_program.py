"""Steps run in order on each replica; a body finds its variables unwritten in each pass."""

import numpy as np
import pytest
import torch
from torch import Tensor

from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.run_program import run_program
from popgeo.ipu.tiles.steps import (
    AllReduce,
    ComputeSet,
    Exchange,
    HostCopy,
    Operand,
    Region,
    Repeat,
    Step,
    Transfer,
    Variable,
    Vertex,
)
from popgeo.ipu.tiles.tile_mapping import TileMapping
from popgeo.ipu.tiles.tile_memory import TileMemory

ON_TILE_0 = TileMapping(starts=np.array([0]), tiles=np.array([0], np.int32), numel=2)
BOTH = np.array([0, 1])


def variable(name: str, lasting: bool = False) -> Variable:
    return Variable(name=name, dtype=torch.float32, mapping=ON_TILE_0, lasting=lasting)


def add(first: str, second: str, into: str, tile: int = 0) -> ComputeSet:
    vertex = Vertex(
        tile=tile,
        operation="aten.add.Tensor",
        reads=(Region(variable=first, elements=BOTH), Region(variable=second, elements=BOTH)),
        writes=(Region(variable=into, elements=BOTH),),
        arguments=(Operand(0), Operand(1)),
    )
    return ComputeSet(name="add", vertices=(vertex,))


HOST_IN, HOST_OUT = HostCopy(to_host=False, streams={"x": "in"}), HostCopy(to_host=True, streams={"y": "out"})


def run(*steps: Step, replicas: int = 1, total: list[Tensor] | None = None) -> list[tuple[int, list[float]]]:
    """Return the tensors of the host by replica. It gives 1, 2, 3, ..., and ten times that to the second replica."""
    names = ("x", "y", "total")
    variables = {name: variable(name, lasting=name == "total") for name in names}
    memories = [TileMemory() for _ in range(replicas)]
    program = Program(num_tiles=2, variables=variables, steps=steps)
    for memory in memories:
        memory.use(program)
        memory.write("total", torch.zeros(2))
    calls = [0] * replicas
    got = []

    def host_in(stream: str, replica: int) -> Tensor:
        assert stream == "in"
        calls[replica] += 1
        return torch.full((2,), float(calls[replica] * 10**replica))

    def host_out(stream: str, replica: int, values: Tensor) -> None:
        assert stream == "out"
        got.append((replica, values.tolist()))

    run_program(program, memories, host_in, host_out)
    if total is not None:
        total += [memory.read("total") for memory in memories]
    return got


def test_a_body_runs_as_often_as_it_says_and_streams_give_something_new_each_time():
    inner = Repeat(count=2, body=(HOST_IN, add("x", "x", "y"), HOST_OUT))
    assert run(Repeat(count=2, body=(inner,))) == [(0, [2, 2]), (0, [4, 4]), (0, [6, 6]), (0, [8, 8])]


def test_what_lasts_adds_up_over_the_passes():
    total: list[Tensor] = []
    run(Repeat(count=4, body=(HOST_IN, add("total", "x", "total"))), total=total)
    assert total[0].tolist() == [10, 10]  # 1 + 2 + 3 + 4


def test_a_pass_cannot_read_what_only_the_pass_before_wrote():
    body = (HOST_IN, add("total", "y", "total"), add("x", "x", "y"))
    with pytest.raises(ValueError, match="reads 2 elements of y"):
        run(HOST_IN, add("x", "x", "y"), Repeat(count=1, body=body))


def test_nor_what_an_inner_repeat_wrote_in_the_pass_before():
    inner = Repeat(count=1, body=(HOST_IN, add("x", "x", "y")))
    assert run(Repeat(count=2, body=(inner, HOST_OUT))) == [(0, [2, 2]), (0, [4, 4])]
    with pytest.raises(ValueError, match="never wrote all elements that it holds of y"):
        run(inner, Repeat(count=1, body=(HOST_OUT, inner)))


def test_what_was_written_before_a_repeat_is_there_in_each_of_its_passes():
    assert run(HOST_IN, Repeat(count=2, body=(add("x", "x", "y"), HOST_OUT))) == [(0, [2, 2]), (0, [2, 2])]


def test_replicas_get_streams_of_their_own_and_an_all_reduce_leaves_the_sum_with_each():
    total: list[Tensor] = []
    steps = HOST_IN, add("total", "x", "total"), AllReduce(variables=("total",), replicas=2), add("x", "total", "y")
    assert run(*steps, HOST_OUT, replicas=2, total=total) == [(0, [12, 12]), (1, [21, 21])]
    assert [held.tolist() for held in total] == [[11, 11], [11, 11]]


def test_what_another_tile_needs_is_sent_in_each_replica():
    sent = Exchange(name="x", transfers=(Transfer(variable="x", source=0, destination=1, elements=BOTH),))
    elsewhere = TileMapping(starts=np.array([0]), tiles=np.array([1], np.int32), numel=2)
    variables = {"x": variable("x"), "y": Variable(name="y", dtype=torch.float32, mapping=elsewhere)}
    program = Program(num_tiles=2, variables=variables, steps=(HOST_IN, sent, add("x", "x", "y", tile=1), HOST_OUT))
    got: list[list[float]] = []
    run_program(
        program,
        [TileMemory(), TileMemory()],
        lambda stream, replica: torch.full((2,), 1.0 + replica),
        lambda stream, replica, values: got.append(values.tolist()),
    )
    assert got == [[2, 2], [4, 4]]

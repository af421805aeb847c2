"""A vertex finds elements that its tile holds or received; it cannot read those of another tile."""

import dataclasses

import numpy as np
import pytest
import torch

from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.steps import ComputeSet, Exchange, Operand, Region, Transfer, Variable, Vertex
from popgeo.ipu.tiles.tile_mapping import TileMapping, linear
from popgeo.ipu.tiles.tile_memory import TileMemory

EVERYWHERE = TileMapping(starts=np.array([0]), tiles=np.array([0], np.int32), numel=1, replicated=True)


def variable(name: str, numel: int = 4, **changed) -> Variable:
    """Return a variable of four elements, two on each of two tiles."""
    mapping = linear(numel, num_tiles=2, grain=2)
    return Variable(**{"name": name, "dtype": torch.float32, "mapping": mapping} | changed)


def program(*variables: Variable, **changed) -> Program:
    return Program(num_tiles=2, variables={one.name: one for one in variables}, steps=(), **changed)


def region(name: str, *elements: int) -> Region:
    return Region(variable=name, elements=np.array(elements))


def negation(tile: int, source: Region, destination: Region | None) -> ComputeSet:
    vertex = Vertex(
        tile=tile, operation="aten.neg.default", reads=(source,), writes=(destination,), arguments=(Operand(0),)
    )
    return ComputeSet(name="negate", vertices=(vertex,))


def transfer(*elements: int, source: int = 1, destination: int = 0) -> Exchange:
    one = Transfer(variable="x", source=source, destination=destination, elements=np.array(elements))
    return Exchange(name="move", transfers=(one,))


@pytest.fixture
def memory() -> TileMemory:
    """Return two tiles on which x is written and y is not."""
    made = TileMemory()
    made.use(program(variable("x"), variable("y"), variable("table", 1, mapping=EVERYWHERE)))
    made.write("x", torch.tensor([1.0, 2, 3, 4]))
    return made


def test_a_vertex_reads_and_writes_its_own_tile_in_the_regions_order(memory):
    memory.compute(negation(0, region("x", 1, 0), region("y", 0, 1)))
    memory.compute(negation(1, region("x", 2, 2), region("y", 2, 3)))
    assert memory.read("y").tolist() == [-2, -1, -3, -3]
    assert memory.read("x").tolist() == [1, 2, 3, 4]


def test_what_was_never_written_is_neither_read_nor_sent_nor_collected(memory):
    with pytest.raises(ValueError, match="a vertex on tile 0 reads 2 elements of y"):
        memory.compute(negation(0, region("y", 0, 1), None))
    memory.compute(negation(0, region("x", 0), region("y", 1)))
    memory.compute(negation(0, region("y", 1), None))
    with pytest.raises(ValueError, match="reads 1 elements of y"):
        memory.compute(negation(0, region("y", 0, 1), None))
    with pytest.raises(ValueError, match="Tile 0 never wrote all elements that it holds of y"):
        memory.read("y")
    sent = dataclasses.replace(transfer(0, source=0, destination=1).transfers[0], variable="y")
    with pytest.raises(ValueError, match="Tile 0 was to send 1 elements of y to tile 1"):
        memory.exchange(Exchange(name="move", transfers=(sent,)))


def test_another_tiles_elements_are_out_of_reach_until_they_are_sent(memory):
    far = negation(0, region("x", 3, 0, 2), None)
    with pytest.raises(ValueError, match="a vertex on tile 0 reads 2 elements of x that its "):
        memory.compute(far)
    memory.exchange(transfer(3))
    with pytest.raises(ValueError, match="reads 1 elements of x"):
        memory.compute(negation(0, region("x", 3, 0, 2), None))
    memory.exchange(transfer(2))
    memory.exchange(transfer(3))
    memory.compute(negation(0, region("x", 3, 2), region("y", 0, 1)))
    assert memory._held["y"].values[:2].tolist() == [-4, -3]


def test_what_was_sent_is_gone_after_the_next_compute_set(memory):
    memory.exchange(transfer(2, 3))
    memory.compute(negation(1, region("x", 2), None))  # also without a reader
    with pytest.raises(ValueError, match="reads 1 elements of x"):
        memory.compute(negation(0, region("x", 2), None))


def test_what_was_sent_is_a_copy_of_what_was_there(memory):
    memory.exchange(transfer(2, 3))
    memory.write("x", torch.tensor([10.0, 20, 30, 40]))
    memory.compute(negation(0, region("x", 0, 2), region("y", 0, 1)))
    assert memory._held["y"].values[:2].tolist() == [-10, -3]


def test_a_tile_sends_only_what_it_holds(memory):
    with pytest.raises(ValueError, match="Tile 1 was to send 2 elements of x to tile 0, but does not hold them"):
        memory.exchange(transfer(1, 2))


def test_a_vertex_writes_no_other_tile_and_nothing_of_another_type_or_size(memory):
    with pytest.raises(ValueError, match="a vertex on tile 0 writes y where another tile holds it"):
        memory.compute(negation(0, region("x", 0), region("y", 2)))
    with pytest.raises(ValueError, match=r"makes torch.float32\[2\] for y, which is torch.float32\[1\] there"):
        memory.compute(negation(0, region("x", 0, 1), region("y", 0)))
    compared = Vertex(
        tile=0,
        operation="aten.gt.Scalar",
        reads=(region("x", 0),),
        writes=(region("y", 0),),
        arguments=(Operand(0), 0),
    )
    with pytest.raises(ValueError, match=r"makes torch.bool\[1\] for y"):
        memory.compute(ComputeSet(name="compare", vertices=(compared,)))


def test_every_tile_has_a_copy_of_what_is_replicated(memory):
    memory.write("table", torch.tensor([7.0]))
    memory.compute(negation(0, region("table", 0), region("y", 0)))
    memory.compute(negation(1, region("table", 0), region("y", 3)))
    assert (memory._held["y"].values[0], memory._held["y"].values[3]) == (-7, -7)


def test_only_what_lasts_keeps_its_content_from_program_to_program():
    weights = variable("weights", lasting=True)
    constant = program(weights, variable("x"), variable("c"), constants={"c": torch.arange(4.0)})
    memory = TileMemory()
    memory.use(constant)
    for name in ("weights", "x", "c"):
        memory.write(name, torch.full((4,), 5.0))
    memory.use(program(variable("other")))
    memory.use(constant)
    assert memory.read("weights").tolist() == [5, 5, 5, 5]
    assert memory.read("c").tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="never wrote all elements that it holds of x"):
        memory.read("x")
    memory.write("x", torch.ones(4))
    memory.use(constant)  # twice in a row
    with pytest.raises(ValueError, match="never wrote all elements that it holds of x"):
        memory.read("x")


def test_what_is_forgotten_is_unwritten_unless_it_lasts_or_is_constant():
    memory = TileMemory()
    memory.use(program(variable("w", lasting=True), variable("x"), variable("c"), constants={"c": torch.ones(4)}))
    memory.write("w", torch.ones(4))
    memory.write("x", torch.ones(4))
    memory.forget(["w", "x", "c"])
    assert memory.read("w").tolist() == memory.read("c").tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="never wrote"):
        memory.read("x")


def test_random_numbers_are_its_own_and_torchs_go_on_as_they_were():
    first, second = (TileMemory(torch.Generator().manual_seed(3).get_state()) for _ in range(2))
    draw = Vertex(
        tile=0,
        operation="call",
        reads=(region("x", 0, 1),),
        writes=(region("y", 0, 1),),
        arguments=("aten.rand_like.default", (Operand(0),), (True,), ()),
    )
    drawn = []
    before = torch.get_rng_state()
    for memory in (first, second):
        memory.use(program(variable("x"), variable("y")))
        memory.write("x", torch.zeros(4))
        for _ in range(2):
            memory.compute(ComputeSet(name="draw", vertices=(draw,)))
            drawn.append(memory._held["y"].values[:2].tolist())
    assert torch.equal(torch.get_rng_state(), before)
    expected = torch.Generator().manual_seed(3)
    assert drawn[:2] == drawn[2:] == [torch.rand(2, generator=expected).tolist() for _ in range(2)]

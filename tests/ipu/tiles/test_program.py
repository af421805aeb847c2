"""The check finds a program that breaks a rule of the machine; traffic is the sum of transfers."""

import dataclasses

import numpy as np
import pytest
import torch

from popgeo.capture.capture import bind, capture
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.tiles.lower.builder import Builder
from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.steps import ComputeSet, Exchange, Repeat, Step, Transfer, Variable
from popgeo.ipu.tiles.tile_mapping import TileMapping
from tests.support.check_program import check
from tests.support.schedule import schedule

SMALL = IpuTarget(name="small", num_tiles=8, memory_per_tile=2**20, clock=1e9, float32_macs=16, float16_macs=64)


def program_of(function, *shape: int) -> Program:
    graph = capture(function, bind(function, torch.ones(shape))).graph
    program = schedule(graph, cost(graph, SMALL), SMALL)
    check(program)
    return program


def traffic(program: Program) -> np.ndarray:
    """Return the bytes that each tile sends to each other tile in one pass over the steps, bodies of repeats once."""
    between = np.zeros((program.num_tiles, program.num_tiles), np.int64)
    for step in program.walk():
        for transfer in step.transfers if isinstance(step, Exchange) else ():
            width = program.variables[transfer.variable].dtype.itemsize
            between[transfer.source, transfer.destination] += width * len(transfer.elements)
    return between


def step_of(program: Program, kind: type) -> int:
    return next(place for place, step in enumerate(program.steps) if isinstance(step, kind))


def with_step(program: Program, place: int, step: Step) -> Program:
    return dataclasses.replace(program, steps=(*program.steps[:place], step, *program.steps[place + 1 :]))


@pytest.fixture(scope="module")
def cosine() -> Program:
    return program_of(torch.cos, 200)


@pytest.fixture(scope="module")
def total() -> Program:
    return program_of(torch.sum, 200)


def test_two_writers_of_one_element_are_found_out(cosine):
    place = step_of(cosine, ComputeSet)
    step = cosine.steps[place]
    twice = dataclasses.replace(step, vertices=(*step.vertices, step.vertices[0]))
    with pytest.raises(ValueError, match="two vertices write the same elements"):
        check(with_step(cosine, place, twice))


def test_work_on_a_tile_that_does_not_hold_the_data_is_found_out(cosine):
    place = step_of(cosine, ComputeSet)
    step = cosine.steps[place]
    elsewhere = dataclasses.replace(step, vertices=(dataclasses.replace(step.vertices[0], tile=7),))
    with pytest.raises(ValueError, match="vertex on tile 7 reads s0, which is not on the tile"):
        check(with_step(cosine, place, elsewhere))
    writes_only = dataclasses.replace(elsewhere.vertices[0], reads=())
    with pytest.raises(ValueError, match="vertex on tile 7 writes s1 of another tile"):
        check(with_step(cosine, place, dataclasses.replace(step, vertices=(writes_only,))))


def test_a_reader_of_what_another_writes_is_found_out(cosine):
    place = step_of(cosine, ComputeSet)
    step = cosine.steps[place]
    first = step.vertices[0]
    reader = dataclasses.replace(first, reads=first.writes, writes=(None,))
    with pytest.raises(ValueError, match="reads elements of s1 that another vertex writes"):
        check(with_step(cosine, place, dataclasses.replace(step, vertices=(*step.vertices, reader))))


def test_a_missing_transfer_is_found_out(total):
    place = step_of(total, Exchange)
    with pytest.raises(ValueError, match="which is not on the tile"):
        check(with_step(total, place, dataclasses.replace(total.steps[place], transfers=())))


def test_a_transfer_from_a_tile_that_holds_nothing_is_found_out(total):
    place = step_of(total, Exchange)
    wrong = tuple(dataclasses.replace(transfer, source=6) for transfer in total.steps[place].transfers)
    with pytest.raises(ValueError, match=r"tile 6 sends elements of .* that it does not have"):
        check(with_step(total, place, dataclasses.replace(total.steps[place], transfers=wrong)))


@pytest.mark.parametrize(
    ("starts", "tiles", "message"),
    [([0, 4, 4], [0, 1, 2], "each element exactly once"), ([1, 4], [0, 1], "once"), ([0, 4], [0, 9], "is on tile 9")],
)
def test_an_element_without_one_home_is_found_out(starts, tiles, message):
    mapping = TileMapping(starts=np.array(starts), tiles=np.array(tiles, np.int32), numel=8)
    variable = Variable(name="x", dtype=torch.float32, mapping=mapping)
    with pytest.raises(ValueError, match=message):
        check(Program(num_tiles=8, variables={"x": variable}, steps=()))


def test_what_arrived_is_gone_after_the_next_compute_set(total):
    place = step_of(total, Exchange)
    compute = total.steps[place + 1]
    with pytest.raises(ValueError, match="which is not on the tile"):
        check(dataclasses.replace(total, steps=(*total.steps[: place + 2], compute)))


def test_traffic_is_counted_from_sender_to_receiver_in_bytes():
    mapping = TileMapping(starts=np.array([0, 3]), tiles=np.array([0, 2], np.int32), numel=8)
    x = Variable(name="x", dtype=torch.float16, mapping=mapping)
    moves = (
        Transfer(variable="x", source=0, destination=1, elements=np.array([0, 2])),
        Transfer(variable="x", source=2, destination=1, elements=np.array([3, 4, 5])),
    )
    body = (Exchange(name="both", transfers=moves),)
    program = Program(num_tiles=3, variables={"x": x}, steps=(Repeat(count=5, body=body), *body))
    assert traffic(program).tolist() == [[0, 8, 0], [0, 0, 0], [0, 12, 0]]


def test_a_sum_moves_one_partial_result_from_each_other_tile(total):
    assert traffic(total)[:, 0].tolist() == [0, *[4] * 6, 0]
    assert traffic(total).sum() == 24


def test_in_the_tests_every_lowered_program_is_checked(monkeypatch):
    graph = capture(torch.sum, bind(torch.sum, torch.ones(200))).graph
    monkeypatch.setattr(Builder, "_transfers", lambda builder, vertices: ())
    with pytest.raises(ValueError, match="which is not on the tile"):
        schedule(graph, cost(graph, SMALL), SMALL)

"""Costs of loops and branches, and completeness of their programs on tiles."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from popgeo import ipu
from popgeo.capture.control_flow import cond, for_loop
from popgeo.ipu import TileExact
from popgeo.ipu.tiles.steps import Repeat

X = torch.rand(1000)


def cycles(function: Callable[..., object], *inputs: Tensor) -> float:
    (cost,) = (c for c in ipu.compile(function, list(inputs)).report.costs if c.family == "control")
    return cost.plan.cycles("calibrated")


def test_cycles_of_a_loop_grow_as_its_turns():
    one, ten, hundred = (cycles(lambda x, n=n: for_loop(n, torch.sin, [x]), X) for n in (1, 10, 100))
    assert (ten, hundred) == (pytest.approx(10 * one), pytest.approx(100 * one))


def test_a_turn_costs_its_body_and_what_it_carries_over():
    body = sum(c.plan.cycles("calibrated") for c in ipu.compile(torch.sin, [X]).report.costs if c.phase != "host")
    assert body < cycles(lambda x: for_loop(1, torch.sin, [x]), X) < 1.5 * body


def test_a_branch_costs_as_much_as_the_more_expensive_one():
    def chosen(then: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor]) -> float:
        return cycles(lambda x: cond(x[0] > 0, then, [x], other, [x]), X)

    dear, cheap = (chosen(f, f) for f in (torch.sin, torch.neg))
    assert cheap < dear == chosen(torch.sin, torch.neg) == chosen(torch.neg, torch.sin)


def test_flops_and_bytes_count_every_turn():
    costs = [ipu.compile(lambda x, n=n: for_loop(n, lambda y: y + 1, [x]), [X]).report.costs[1] for n in (1, 7)]
    assert (costs[1].flops, costs[1].bytes) == (7 * costs[0].flops, 7 * costs[0].bytes) == (7000, 7 * 8000)


@pytest.mark.parametrize("holds", [True, False])
def test_tiles_run_loops_and_branches_as_the_engine_does(holds: bool):
    def step(c: Tensor, x: Tensor) -> list[Tensor]:
        view = x[1:]
        made = for_loop(3, lambda y, z: (z * 2, y + view.sum()), [x, x + 1])
        return cond(c, lambda a, b: (a, b - x), made, lambda a: (a * x, a), made[:1])

    inputs = torch.tensor(holds), torch.rand(40)
    compiled = ipu.compile(step, list(inputs))
    exact = TileExact(compiled)
    torch.testing.assert_close(list(exact(*inputs)), list(compiled(*inputs)))
    (loop,) = (one for one in exact.program.walk() if isinstance(one, Repeat) and one.name == "turns of a loop")
    assert loop.count == 3


def test_a_number_to_the_power_of_a_tensor_and_the_kth_value_have_a_cost():
    for function in (lambda x: 2**x, lambda x: x.kthvalue(2), lambda x: x.view(10, 100).kthvalue(2, 1).values):
        assert ipu.compile(function, [X]).report.total_cycles > 0

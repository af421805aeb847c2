"""Costs of loops and branches, worked out by hand from given plans of the operations in their bodies."""

from dataclasses import replace

import pytest
import torch

from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.control import rules
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.plan import Activity, Plan, Superstep

FOUR = Machine(target=replace(IpuTarget.bow(), num_tiles=4))


def value(elements: int, storage: int, producer: int | None = None) -> Value:
    return Value(
        shape=(elements,), stride=(1,), offset=0, dtype=torch.float32, storage=storage, producer=producer,
    )  # fmt: skip


def op(*reads: int, makes: int | None) -> Op:
    return Op(target="any.op.default", args=tuple(map(Ref, reads)), outputs=(makes,))


def step(ideal: float, calibrated: float) -> Superstep:
    return Superstep(
        name="work", activity=Activity.COMPUTE, ideal=ideal, calibrated=calibrated, mean=ideal / 2, tiles=3,
        bytes_in=7, bytes_out=5, bytes_total=11,
    )  # fmt: skip


def given(number: int) -> Input:
    return Input(Role.ARGUMENT, f"given.{number}")


def outside(number: int) -> Input:
    return Input(Role.ARGUMENT, f"outside.{number}")


def taking(*temporary: int) -> list[Plan]:
    return [Plan(family="any", temporary_bytes=nbytes) for nbytes in temporary]


def plan_of(target: str, operation: Op, graph: OpGraph, plans: dict[int, list[Plan]]) -> Plan:
    """Return the plan of a loop or branch from the plans of its bodies, given by the address of each body."""
    return rules(lambda body, machine: plans[id(body)])[target](graph, operation, FOUR)


def room(body: OpGraph, *temporary: int) -> int:
    """Return the bytes of a tile that a loop takes whose operations take the given bytes."""
    loop = Op(target="popgeo.for_loop.default", args=(1, []), outputs=(), bodies=(body,))
    return plan_of("popgeo.for_loop", loop, body, {id(body): taking(*temporary)}).temporary_bytes


# From 20 given floats and 400 floats outside it makes 10, and from these the 6 that it returns.
BODY = OpGraph(
    ops=(op(0, 1, makes=2), op(2, makes=3)),
    values=(value(20, 0), value(400, 1), value(10, 2, 0), value(6, 3, 1)),
    inputs={given(0): 0, outside(0): 1},
    outputs=(3,),
)


@pytest.mark.parametrize(
    ("temporary", "most"),
    [
        # While the first operation runs, 30 floats are on four tiles, 30 bytes each; during the second, 16.
        ((0, 0), 30),
        ((5, 0), 35),
        ((0, 14), 30),
        ((0, 15), 31),
        ((5, 100), 116),
    ],
)
def test_the_values_of_a_body_take_room_from_their_making_to_their_last_use(temporary, most):
    assert room(BODY, *temporary) == most


def test_what_a_body_is_given_takes_room_before_anything_runs():
    values = (value(20, 0), value(400, 1))
    body = OpGraph(ops=(), values=values, inputs={given(0): 0, outside(0): 1}, outputs=(0,))
    assert room(body) == 20
    assert room(replace(body, inputs={outside(0): 1}, outputs=(1,))) == 0


def test_what_a_body_is_given_and_never_reads_makes_room_after_the_first_operation():
    unread = replace(BODY, ops=(op(1, makes=2), op(2, makes=3)))
    assert room(unread, 0, 100) == 100 + 16
    assert room(unread, 1, 0) == 1 + 30


def test_what_a_body_returns_takes_room_to_its_end():
    both = replace(BODY, outputs=(3, None, 0))
    assert room(both, 0, 100) == 100 + 36
    early = replace(BODY, ops=(op(0, makes=2), op(1, makes=3)), outputs=(2,))
    assert room(early, 0, 100) == 100 + 16


def test_views_of_what_lies_outside_take_no_room_and_views_of_what_is_held_no_more():
    # The second operation makes a view of an outside value, the third a view of the first result.
    body = OpGraph(
        ops=(op(0, makes=2), op(1, makes=3), op(2, 3, makes=4)),
        values=(value(20, 0), value(400, 1), value(10, 2, 0), value(400, 1, 1), value(10, 2, 2)),
        inputs={given(0): 0, outside(0): 1},
        outputs=(4,),
    )
    assert room(body, 0, 0, 0) == 30
    assert room(body, 0, 100, 0) == 100 + 10
    assert room(body, 0, 0, 100) == 100 + 10


def test_a_loop_takes_its_body_and_a_copy_of_what_it_carries_as_often_as_it_turns():
    # It copies 40 and 2 floats: 32 and 2 on the fullest tile, 136 bytes at 8 per cycle after 288 cycles; 82 to launch.
    values = (value(40, 0), value(2, 1), value(40, 2, 0), value(2, 3, 0))
    loop = Op(target="popgeo.for_loop.default", args=(3, [Ref(0), Ref(1)]), outputs=(2, 3), bodies=(BODY,))
    graph = OpGraph(ops=(loop,), values=values, inputs={given(0): 0, given(1): 1}, outputs=(2, 3))
    plans = [Plan(family="any", supersteps=(step(10, 20),), flops=9, temporary_bytes=5, why="so"), *taking(15)]
    plan = plan_of("popgeo.for_loop", loop, graph, {id(BODY): plans})
    body, carry = plan.supersteps
    assert (body.ideal, body.calibrated, body.mean) == (30, 60, 15)
    assert (body.bytes_in, body.bytes_out, body.bytes_total) == (21, 15, 33)
    assert carry.ideal == carry.calibrated == 3 * (82 + 288 + 136 / 8)
    assert (carry.tiles, carry.name) == (2, "carry over")
    assert plan.split == {"serial": 3}
    assert (plan.family, plan.flops, plan.temporary_bytes) == ("control", 27, 35)
    assert plan.why == "3 turns of the body; any: so; movement: no published measurement of a copy"


def test_a_captured_loop_has_a_rule():
    loop = Op(target="popgeo.for_loop.default", args=(3, [Ref(0)]), outputs=(1,), bodies=(BODY,))
    graph = OpGraph(ops=(loop,), values=(value(6, 0), value(6, 1, 0)), inputs={given(0): 0}, outputs=(1,))
    (found,) = cost(graph, FOUR.target)
    assert (found.known, found.family, found.plan.split) == (True, "control", {"serial": 3})


def test_a_loop_that_carries_nothing_copies_nothing():
    loop = Op(target="popgeo.for_loop.default", args=(2, []), outputs=(), bodies=(BODY,))
    plan = plan_of("popgeo.for_loop", loop, BODY, {id(BODY): taking(0, 0)})
    assert [(one.ideal, one.tiles) for one in plan.supersteps] == [(2 * (82 + 288), 1)]


@pytest.mark.parametrize("is_second", [False, True])
def test_the_more_expensive_branch_counts_and_room_is_kept_for_either(is_second):
    other = replace(BODY, ops=BODY.ops[:1], values=BODY.values[:3], outputs=(2,))
    # The branch with more calibrated cycles has fewer ideal cycles, and needs less memory.
    plans = {
        id(BODY): [Plan(family="dear", supersteps=(step(10, 900),), flops=5), *taking(0)],
        id(other): [Plan(family="cheap", supersteps=(step(800, 20),), flops=4, temporary_bytes=50)],
    }
    bodies = (other, BODY) if is_second else (BODY, other)
    branch = Op(target="popgeo.cond.default", args=(Ref(0), [], []), outputs=(1,), bodies=bodies)
    graph = OpGraph(ops=(branch,), values=(value(1, 0), value(6, 1, 0)), inputs={given(0): 0}, outputs=(1,))
    plan = plan_of("popgeo.cond", branch, graph, plans)
    assert [one.calibrated for one in plan.supersteps] == [900, 82 + 288 + 24 / 8]
    assert (plan.flops, plan.temporary_bytes, plan.split) == (5, 50 + 30, {})
    assert plan.parts == tuple(one for body in bodies for one in plans[id(body)])

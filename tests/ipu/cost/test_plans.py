"""Planners divide work over the tiles, and name supersteps."""

import dataclasses
import itertools
import math
from collections.abc import Callable

import pytest

from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.calibration import BOW_SDK3, CONSTANTS, Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.gather import plan_gather
from popgeo.ipu.cost.matmul import plan_matmul
from popgeo.ipu.cost.plan import Plan, Profile, Validity
from popgeo.ipu.cost.reduce import plan_reduce
from popgeo.ipu.cost.scatter import plan_scatter_add
from popgeo.ipu.cost.splits import within
from popgeo.ipu.cost.supersteps import transfer_cycles

BOW, GC2 = IpuTarget.bow(), IpuTarget.gc2()
ON_BOW = Machine(target=BOW)


PLANS: dict[str, Callable[[Machine], Plan]] = {
    "gather on one stage": lambda machine: plan_gather(16, 64, 4096, 4, machine),
    "gather on two stages": lambda machine: plan_gather(4096, 16, 128, 4, machine),
    "scatter": lambda machine: plan_scatter_add(32768, 64, 512, 4, machine),
    "scatter with partial sums": lambda machine: plan_scatter_add(32, 16, 4096, 4, machine),
    "product": lambda machine: plan_matmul(16128, 100, 100, 4, machine),
    "product in turns": lambda machine: plan_matmul(8192, 8192, 2048, 4, machine),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("target", [BOW, dataclasses.replace(BOW, num_tiles=8)], ids=["bow", "8 tiles"])
def test_a_plan_uses_no_more_tiles_than_there_are(name, target):
    plan = PLANS[name](Machine(target=target))
    cuts = [parts for dimension, parts in plan.split.items() if dimension != "serial"]
    assert math.prod(cuts) <= target.num_tiles
    assert all(0 <= step.tiles <= target.num_tiles for step in plan.supersteps)
    assert all(0 <= step.mean <= step.ideal + 1e-6 for step in plan.supersteps)


@pytest.mark.parametrize("name", PLANS)
def test_each_constant_acts_on_the_superstep_that_it_belongs_to(name):
    plan = PLANS[name](ON_BOW)
    doubled = dataclasses.replace(BOW_SDK3, **{constant: 2 * getattr(BOW_SDK3, constant) for constant in CONSTANTS})
    turns = plan.split.get("serial", 1)
    loops = 500 * turns if turns > 1 else 0
    twice = PLANS[name](Machine(target=BOW, calibration=doubled))
    assert twice.cycles(Profile.CALIBRATED) - loops == pytest.approx(2 * (plan.cycles(Profile.CALIBRATED) - loops))
    assert twice.cycles(Profile.IDEAL) == plan.cycles(Profile.IDEAL)


@pytest.mark.parametrize("name", [name for name in PLANS if name != "product in turns"])
def test_a_plan_takes_at_most_its_share_of_a_tile(name):
    assert PLANS[name](ON_BOW).temporary_bytes <= 0.6 * BOW.memory_per_tile


def test_a_product_too_large_for_the_tiles_is_computed_in_turns():
    plan = plan_matmul(8192, 8192, 2048, 4, ON_BOW)
    assert plan.split["serial"] > 1
    assert plan.temporary_bytes <= 0.6 * BOW.memory_per_tile
    assert plan_matmul(1024, 1024, 64, 4, ON_BOW).split["serial"] == 1


def test_a_product_costs_about_the_same_either_way_round():
    tall, wide = plan_matmul(16128, 128, 64, 4, ON_BOW), plan_matmul(64, 128, 16128, 4, ON_BOW)
    assert tall.cycles(Profile.IDEAL) == wide.cycles(Profile.IDEAL)
    assert (tall.split["rows"], tall.split["columns"]) == (wide.split["columns"], wide.split["rows"])


def test_an_exchange_is_limited_by_its_pieces_when_they_are_small_and_by_its_bytes_when_not():
    assert transfer_cycles(BOW, bytes_in=4 * 1000, fragments_in=1000) == 3 * 1000 + 1
    assert transfer_cycles(BOW, bytes_in=400 * 1000, fragments_in=1000) == 100 * 1000
    assert transfer_cycles(BOW, bytes_in=400 * 1000, fragments_in=1000, is_paired=True) == 50 * 1000
    assert transfer_cycles(BOW, bytes_in=0) == 0


@pytest.mark.parametrize(
    ("plan", "validity", "words"),
    [
        (plan_gather(576, 100, 16128, 4, ON_BOW), Validity.VALIDATED, ""),
        (
            plan_gather(8000, 100, 16128, 4, ON_BOW),
            Validity.EXTRAPOLATED,
            "8,000 rows of the table, published for 16 to",
        ),
        (plan_scatter_add(576, 1024, 1000, 4, ON_BOW), Validity.EXTRAPOLATED, "1,024 columns"),
        (plan_gather(576, 100, 16128, 2, ON_BOW), Validity.ESTIMATE, "float32 only"),
        (plan_matmul(2048, 2048, 64, 4, ON_BOW), Validity.VALIDATED, ""),
        (plan_scatter_add(576, 100, 16128, 4, ON_BOW), Validity.VALIDATED, ""),
        (plan_scatter_add(16128, 100, 16128, 4, ON_BOW), Validity.EXTRAPOLATED, "16,128 rows into 16,128"),
        (plan_matmul(16128, 100, 100, 4, ON_BOW), Validity.VALIDATED, ""),
        (plan_matmul(100, 16128, 100, 4, ON_BOW), Validity.EXTRAPOLATED, "100 x 16,128 x 100"),
        (plan_elementwise("exp", 16128 * 100, 4, ON_BOW), Validity.VALIDATED, ""),
        (plan_elementwise("sqrt", 16128 * 100, 4, ON_BOW), Validity.ESTIMATE, "which no published measurement checks"),
        (plan_gather(576, 100, 16128, 4, Machine(target=GC2)), Validity.EXTRAPOLATED, "1,216 tiles"),
        (plan_reduce(1, 1000, 4, ON_BOW), Validity.ESTIMATE, "first generation"),
    ],
)
def test_a_plan_says_how_far_its_cost_can_be_trusted(plan, validity, words):
    assert plan.validity is validity
    assert words in plan.why
    assert bool(plan.why) == (validity is not Validity.VALIDATED)


def test_every_division_over_the_tiles_is_looked_at_once():
    tiles, limits = 12, (3, 12, 5)
    plain = {cuts for cuts in itertools.product(*(range(1, n + 1) for n in limits)) if math.prod(cuts) <= tiles}
    found = [tuple(cuts) for cuts in within(tiles, *limits).T.tolist()]
    assert len(found) == len(set(found))
    assert set(found) == plain


def test_every_plan_depends_on_the_exchange_and_the_workers_of_the_machine():
    half = Machine(target=dataclasses.replace(BOW, exchange_bytes=2, exchange_pair_bytes=4))
    few = Machine(target=dataclasses.replace(BOW, workers_per_tile=3))
    for make in PLANS.values():
        assert make(half).cycles(Profile.IDEAL) > make(ON_BOW).cycles(Profile.IDEAL)
        assert make(few).cycles(Profile.IDEAL) != make(ON_BOW).cycles(Profile.IDEAL)

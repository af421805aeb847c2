"""Insights about a pipeline are true: each remedy, applied, gives the promised figures."""

import re

import pytest

from popgeo import ipu
from popgeo.ipu.report.stage_insights import GOOD_BUBBLE
from tests.ipu.systems.conftest import plan_of


def remedy(plan, title):
    """Return the only insight with these words in its title, and the plan after its change."""
    (found,) = (insight for insight in plan.insights if title in insight.title)
    return found, plan.replan(**found.change)


def promised(found):
    """Return the cycles that a remedy promises."""
    return float(re.search(r"([\d,]+) cycles per step instead", found.remedy)[1].replace(",", ""))


def test_a_stage_that_is_too_long_hands_a_layer_on_and_the_step_takes_the_cycles_promised():
    plan = plan_of(*[256] * 9, stages=[2, 4, 2], count=32)
    found, after = remedy(plan, "Stage 1 is 1.5x the mean")
    assert re.match(r"Move layers\.(2|5) to stage (0|2): ", found.remedy)
    assert [len(names) for names in after.layers] in ([3, 3, 2], [2, 3, 3])
    assert after.cycles == pytest.approx(promised(found), abs=1)
    assert after.cycles < 0.85 * plan.cycles
    assert found.share == pytest.approx(1 - after.cycles / plan.cycles)


def test_a_layer_is_handed_on_from_stage_to_stage_where_the_next_is_as_long():
    plan = plan_of(*[256] * 9, stages=[3, 3, 1, 1], count=32)
    found, after = remedy(plan, "x the mean")
    assert [len(names) for names in after.layers] == [3, 2, 2, 1] or "on to stage" in found.remedy
    assert after.cycles <= plan.cycles


def test_a_stage_of_one_layer_is_not_told_to_give_it_away():
    plan = plan_of(64, 1024, 1024, 64, 64, rows=4096, stages={"layers.1": 1, "layers.2": 2}, count=32)
    found, _ = remedy(plan, "Stage 1 is")
    assert "It is one layer, layers.1" in found.remedy
    assert not found.change


@pytest.mark.parametrize("train", [True, False])
def test_more_micro_batches_wait_as_little_as_promised_and_one_in_twenty_fewer_more(train):
    plan = plan_of(*[512] * 9, stages=4, count=4, train=train)
    found, after = remedy(plan, "of the time")
    limit = float(re.search(r"bubble below (\d+)%", found.remedy)[1]) / 100
    assert after.bubble <= limit < plan.bubble
    assert limit < plan.bubble / 2
    assert ("Accumulate" in found.remedy) == train
    assert plan.replan(micro_batches=int(0.9 * after.micro_batches)).bubble > min(after.bubble, GOOD_BUBBLE)
    assert found.share == pytest.approx(1 - plan.micro_batches_per_second / after.micro_batches_per_second)


def test_a_sharded_model_is_told_to_pipeline():
    plan = plan_of(*[256] * 9, stages=4, schedule="sharded")
    found, after = remedy(plan, "Only one IPU works")
    assert after.schedule.value == "lock_step"
    assert after.cycles == pytest.approx(promised(found), abs=1)
    assert after.cycles < plan.cycles / 2


def test_recomputation_is_advised_where_it_makes_room_and_against_where_there_was_room():
    tight = plan_of(*[1024] * 9, rows=8192, stages=4, count=16)
    assert not tight.fits
    found, after = remedy(tight, "times its memory")
    assert found.fatal
    assert after.fits
    easy = plan_of(*[256] * 9, stages=3, recompute=True)
    found, after = remedy(easy, "Recomputation is not needed")
    assert after.fits
    assert after.cycles == pytest.approx(promised(found), abs=1)
    assert after.cycles < 0.9 * easy.cycles


def test_more_stages_are_advised_where_weights_do_not_fit():
    plan = plan_of(*[6000] * 9, rows=8, stages=2, count=16)
    assert not plan.fits
    found, after = remedy(plan, "times its memory")
    assert found.change["stages"] > 2
    assert after.fits


def test_a_grouped_schedule_that_keeps_too_much_is_told_of_the_other():
    plan = plan_of(*[512] * 9, rows=4096, stages=4, count=256, schedule="grouped")
    found, after = remedy(plan, "times its memory")
    assert found.change == {"schedule": "lock_step"}
    assert after.fits


def test_replicas_are_advised_where_the_model_fits_fewer_ipus():
    plan = plan_of(*[256] * 9, stages=4, count=8, replicas=2)
    found, after = remedy(plan, "Replicas do more")
    assert after.num_ipus * after.replicas == plan.num_ipus * plan.replicas
    assert after.micro_batches * after.replicas == plan.micro_batches * plan.replicas  # the same batch
    assert after.micro_batches_per_second > plan.micro_batches_per_second
    assert f"{after.micro_batches_per_second:,.1f} micro-batches/s" in found.remedy


def test_the_host_is_named_where_it_is_waited_for_and_its_remedies_hold():
    plan = plan_of(*[256] * 5, stages=2, count=4, target=ipu.IpuTarget.bow())
    found, after = remedy(plan, "inputs and results")
    assert found.change == {"overlap_host": True}
    assert after.cycles == pytest.approx(promised(found), abs=1)
    assert after.cycles < plan.cycles
    found, after = remedy(plan, "Calls of the host")
    assert after.micro_batches_per_second > 2 * plan.micro_batches_per_second
    assert after.host_seconds / (after.host_seconds + after.seconds) <= GOOD_BUBBLE


def test_of_one_ipu_nothing_is_said_but_of_its_operations():
    assert all(insight.ops for insight in plan_of(*[256] * 5, stages=1).insights)

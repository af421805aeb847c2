"""The cost of a whole step: every micro-batch, the update, the other replicas, and the memory of a tile."""

import dataclasses

import pytest
import torch

from popgeo import ipu
from popgeo.ipu import Report
from tests.support.small_models import ContinuousFilters, compile_training, make_batch, training_report


@pytest.fixture(scope="module")
def report():
    return training_report()


def cycles_of(report: Report, *phases: str) -> float:
    return sum(cost.plan.cycles(report.profile) for cost in report.costs if cost.phase in phases)


def cycles_of_division(report: Report) -> float:
    """Return the cycles of the mean over micro-batches and replicas."""
    (division,) = [cost for cost in report.costs if cost.phase == "update" and cost.target == "aten.div_.Tensor"]
    return division.plan.cycles(report.profile)


def test_a_step_costs_each_micro_batch_and_one_update(report):
    three = training_report(gradient_accumulation=3)
    micro = cycles_of(report, "forward", "backward")
    update = cycles_of(report, "update") + cycles_of_division(three)
    adds = [cost for cost in three.costs if cost.phase == "accumulate"]
    assert [cost.target for cost in adds] == ["aten.add_.Tensor"]
    accumulation = sum(cost.count * cost.plan.cycles(report.profile) for cost in adds)
    assert three.total_cycles == pytest.approx(3 * micro + accumulation + update, abs=1)


def test_dividing_and_clipping_gradients_is_part_of_the_update(report):
    def of_the_update(report):
        return [cost for cost in report.costs if cost.phase == "update"]

    plain = of_the_update(report)
    scaled = of_the_update(training_report(loss_scaling=8.0))
    assert [cost.target for cost in scaled] == ["aten.div_.Tensor", *(cost.target for cost in plain)]
    clipped = of_the_update(training_report(max_grad_norm=1.0))
    assert [cost.target for cost in clipped][-len(plain) :] == [cost.target for cost in plain]
    added = clipped[: -len(plain)]
    assert "aten.linalg_vector_norm.default" in [cost.target for cost in added]
    assert all(cost.count == 1 for cost in (*scaled, *clipped))
    cycles = sum(cost.plan.cycles(report.profile) for cost in added)
    assert training_report(max_grad_norm=1.0).total_cycles == pytest.approx(report.total_cycles + cycles, abs=1)
    assert cycles > 0


def test_replicas_work_side_by_side_and_add_up_their_gradients(report):
    both = training_report(replication_factor=2)
    (reduce,) = [cost for cost in both.costs if cost.family == "collectives"]
    parameters = sum(p.numel() for p in ContinuousFilters().parameters())
    assert reduce.plan.supersteps[0].bytes_total == 8 * parameters  # each sends half of its gradients, twice
    assert both.total_cycles == pytest.approx(
        report.total_cycles + reduce.plan.cycles(report.profile) + cycles_of_division(both), abs=1
    )
    assert both.for_batch(graphs=2).graphs_per_second == pytest.approx(2 * 2e6 / both.microseconds)
    assert "2 x Bow" in str(both)


def test_the_update_costs_the_same_before_and_after_the_first_one():
    step = compile_training()
    before = step.report
    step(**make_batch(0))
    step.reset()
    step(**make_batch(0))
    step(**make_batch(0))
    assert before.update_captured is None
    assert step.report.update_captured is True
    assert step.report.costs == before.costs


@pytest.fixture
def small_target():
    return dataclasses.replace(ipu.IpuTarget.bow(), num_tiles=4, memory_per_tile=48 * 1024)


def test_a_strict_compile_refuses_what_no_tile_can_hold_and_others_report_it(small_target):
    def outer(x):
        return (x[:, None] * x).sum()

    with pytest.raises(ipu.OutOfTileMemory, match=r"Tile \d needs [\d,]+ bytes of its 49,152 while .*strict=False"):
        ipu.compile(outer, [torch.ones(400)], target=small_target)
    report = ipu.compile(outer, [torch.ones(400)], target=small_target, strict=False).report
    assert not report.memory.fits
    assert any(insight.title == "Memory is exceeded" for insight in report.insights)
    assert ipu.compile(outer, [torch.ones(4)], target=small_target).report.memory.fits


def test_a_strict_training_model_is_refused_before_it_runs(small_target):
    model = ContinuousFilters(channels=64).double()
    step = ipu.training_model(model, ipu.Options(target=small_target))
    with pytest.raises(ipu.OutOfTileMemory):
        step(**make_batch(0))
    assert not step.is_compiled

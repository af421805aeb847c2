"""The report says what a step costs on the machine, without running it."""

import pytest
import torch

from popgeo import ipu
from popgeo.ipu.plan import Activity, Profile

from .models import ContinuousFilters, make_batch


def compiled(**options):
    torch.manual_seed(0)
    model = ContinuousFilters().double()
    step = ipu.training_model(model, ipu.Options(**options), torch.optim.Adam(model.parameters()))
    return step.compile(**make_batch(0))


def test_a_report_of_a_large_gather_comes_without_running_it():
    def gather(x, index):
        assert isinstance(x, torch._subclasses.FakeTensor)
        return x.index_select(0, index)

    x, index = torch.empty(4096, 512), torch.empty(32768, dtype=torch.int64)
    report = ipu.compile(gather, [x, index], target=ipu.IpuTarget.bow()).report
    assert report.total_cycles > 10_000
    assert report.microseconds == pytest.approx(report.total_cycles / 1850)


def test_cycles_of_supersteps_sum_to_the_total_and_the_host_is_apart():
    report = compiled().report
    steps = [(cost.count, step) for cost in report.costs for step in cost.plan.supersteps]
    on_device = sum(n * step.calibrated for n, step in steps if step.activity is not Activity.HOST)
    assert report.total_cycles == round(on_device)
    assert report.cycles_by_activity[Activity.HOST] > 0
    assert report.profile is Profile.CALIBRATED


def test_a_step_costs_each_micro_batch_and_one_update():
    model = ContinuousFilters().double()
    batch = {name: tensor.repeat([3] + [1] * (tensor.dim() - 1)) for name, tensor in make_batch(0).items()}
    options = ipu.Options(gradient_accumulation=3)
    report = ipu.training_model(model, options, torch.optim.Adam(model.parameters())).compile(**batch).report
    phases = {cost.phase: cost.count for cost in report.costs}
    assert phases == {"host": 3, "forward": 3, "backward": 3, "update": 1}
    once = compiled().report
    assert report.total_cycles > 2 * once.total_cycles
    assert report.total_cycles < 3 * once.total_cycles


def test_the_update_is_the_same_before_and_after_the_first_one():
    step = compiled()
    before = step.report
    step(**make_batch(0))
    step.destroy()
    step(**make_batch(0))
    step(**make_batch(0))
    assert before.update_captured is None
    assert step.report.update_captured is True
    assert step.report.costs == before.costs

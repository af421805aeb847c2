"""The error budget of a report, computed by hand."""

import json
import math

import pytest
import torch

from popgeo import ipu
from popgeo.ipu.cost.plan import Activity, OpCost, Plan, Superstep, Validity
from popgeo.ipu.report.error_budget import BEYOND, MEASURED, NOT_MEASURED, PROGRAM, error_budget


def cost(family: str, cycles: float, validity: Validity, phase: str = "forward", count: int = 1) -> OpCost:
    step = Superstep(name="work", activity=Activity.COMPUTE, ideal=cycles, calibrated=cycles)
    plan = Plan(family=family, supersteps=(step,), validity=validity)
    return OpCost(target="aten.relu.default", phase=phase, plan=plan, count=count)


def test_families_that_are_independent_add_their_squares():
    found = error_budget(
        [
            cost("gather", 300, Validity.VALIDATED),
            cost("matmul", 25, Validity.EXTRAPOLATED, count=8),
            cost("norms", 500, Validity.ESTIMATE),
            cost("host", 10**9, Validity.ESTIMATE, phase="host"),
        ]
    )
    assert (found.validated, found.extrapolated, found.estimates) == pytest.approx((0.3, 0.2, 0.5))
    above = (PROGRAM[1] - 1, 0.3 * (MEASURED["gather"][1] - 1), 0.2 * BEYOND * (MEASURED["matmul"][1] - 1),
             0.5 * (NOT_MEASURED[1] - 1))  # fmt: skip
    below = (1 - PROGRAM[0], 0.3 * (1 - MEASURED["gather"][0]), 0.2 * BEYOND * (1 - MEASURED["matmul"][0]),
             0.5 * (1 - NOT_MEASURED[0]))  # fmt: skip
    assert found.high == pytest.approx(1 + math.sqrt(sum(part**2 for part in above)))
    assert found.low == pytest.approx(1 - math.sqrt(sum(part**2 for part in below)))


def test_operations_of_one_family_are_wrong_together():
    halves = [cost("gather", 50, Validity.VALIDATED)] * 2
    assert error_budget(halves) == error_budget([cost("gather", 100, Validity.VALIDATED)])


def test_what_was_not_measured_widens_the_interval():
    widths = [
        found.high - found.low for found in (error_budget([cost("matmul", 1, validity)]) for validity in Validity)
    ]
    assert widths == sorted(widths)
    assert widths[0] < widths[1] < widths[2]


def test_a_step_without_cycles_has_a_budget():
    assert error_budget([]).validated == 0


def test_text_page_and_json_say_the_interval_of_one_ipu_and_of_stages():
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(2)))
    for report in (
        ipu.compile(torch.mm, [torch.ones(1024, 1024), torch.ones(1024, 64)]).report,
        ipu.pipeline(layers, [torch.ones(16, 64)], ipu.Options(device_iterations=4), stages=2),
    ):
        budget = report.error_budget
        words = f"expected to take {budget.low:.2f} to {budget.high:.2f} of this total"
        assert words in str(report)
        assert words in report.to_html()
        assert json.loads(report.to_json())["error_budget"]["high"] == budget.high
        assert type(report).from_json(report.to_json()).error_budget == budget

"""The numbers of a report follow from its costs, and tell one story in every form."""

import copy
import dataclasses
import json
import pickle

import pytest
import torch

from popgeo import ipu
from popgeo.ipu.report.figures import Family
from tests.support.small_models import ContinuousFilters, make_batch


def compiled(**options):
    """The report of a training step in which all phases occur, and several micro-batches where asked."""
    torch.manual_seed(0)
    model = ContinuousFilters().double()
    step = ipu.training_model(model, ipu.Options(**options), torch.optim.Adam(model.parameters()))
    times = options.get("gradient_accumulation", 1) * options.get("replication_factor", 1)
    return step.compile(**{name: x.repeat([times] + [1] * (x.dim() - 1)) for name, x in make_batch(0).items()}).report


STEPS = {
    "running sum": lambda: ipu.compile(lambda x: x.cumsum(0).softmax(1), [torch.ones(40, 40)]).report,
    "views": lambda: ipu.compile(lambda x: x.view(-1), [torch.ones(3, 2)]).report,
    "training": compiled,
    "micro-batches and replicas": lambda: compiled(gradient_accumulation=3, replication_factor=2),
    "sum of two": lambda: compiled() + compiled(),
}


@pytest.mark.parametrize("step", STEPS)
def test_families_are_those_of_the_table_in_every_form(step):
    report = STEPS[step]()
    table = report.to_frame("families").set_index("family").drop(index=["host", "view"], errors="ignore")
    assert set(report.families) == set(table.index)
    for name, family in report.families.items():
        assert (family.ops, family.flops) == tuple(table.loc[name, ["ops", "flops"]])
    assert report.total.flops == report.to_frame("ops")["flops"].sum()
    written = json.loads(report.to_json())["families"]
    assert {name: Family(**family) for name, family in written.items()} == report.families


def test_a_running_sum_and_a_softmax_are_two_families():
    report = STEPS["running sum"]()
    assert set(report.families) == {"reduce", "norms"}
    assert report.total.flops == 11_250


def test_families_count_what_every_micro_batch_runs_and_the_update_once():
    once, thrice = compiled(), compiled(gradient_accumulation=3)
    assert thrice.families["matmul"] == sum([once.families["matmul"]] * 3, Family())
    update = sum(cost.phase == "update" and cost.family != "view" for cost in once.costs)
    adds = sum(cost.phase == "accumulate" for cost in thrice.costs)
    assert thrice.total.ops == 3 * (once.total.ops - update) + 3 * adds + update

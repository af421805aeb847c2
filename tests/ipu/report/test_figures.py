"""The numbers of a report follow from its costs, and agree in every form."""

import copy
import dataclasses
import json
import pickle

import pytest
import torch

from popgeo import ipu
from popgeo.ipu.cost.plan import Activity, Profile
from popgeo.ipu.step_cost import Cost
from tests.support.small_models import training_report

STEPS = {
    "running sum": lambda: ipu.compile(lambda x: x.cumsum(0).softmax(1), [torch.ones(40, 40)]).report,
    "views": lambda: ipu.compile(lambda x: x.view(-1), [torch.ones(3, 2)]).report,
    "training": lambda: training_report(),
    "micro-batches and replicas": lambda: training_report(gradient_accumulation=3, replication_factor=2),
    "sum of two": lambda: training_report() + training_report(),
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
    assert {name: Cost(**family) for name, family in written.items()} == report.families


def test_a_running_sum_and_a_softmax_are_two_families():
    report = STEPS["running sum"]()
    assert set(report.families) == {"reduce", "norms"}
    assert report.total.flops == 11_290  # including the inverses of the softmax's 40 sums


def test_families_count_what_every_micro_batch_runs_and_the_update_once():
    once, thrice = training_report(), training_report(gradient_accumulation=3)
    assert vars(thrice.families["matmul"]) == pytest.approx(vars(sum([once.families["matmul"]] * 3, Cost())))
    update = sum(cost.phase == "update" and cost.family != "view" for cost in once.costs)
    adds = sum(cost.phase == "accumulate" for cost in thrice.costs)
    division = 1  # of the sum of gradients
    assert thrice.total.ops == 3 * (once.total.ops - update) + 3 * adds + division + update


def test_cycles_of_supersteps_sum_to_the_total_and_the_host_is_apart(report):
    steps = [(cost.count, step) for cost in report.costs for step in cost.plan.supersteps]
    on_device = sum(n * step.calibrated for n, step in steps if step.activity is not Activity.HOST)
    assert report.total_cycles == round(on_device)
    assert report.cycles_by_activity[Activity.HOST] > 0
    assert report.profile is Profile.CALIBRATED


def test_graphs_per_second_follow_from_the_clock_and_the_real_graphs(report):
    assert report.graphs_per_second == pytest.approx(2 * 1.85e9 / report.total_cycles)
    assert report.for_batch(graphs=4).graphs_per_second == pytest.approx(2 * report.graphs_per_second)
    assert report.for_batch(real={12: 10}).graphs_per_second == report.graphs_per_second
    assert report.for_batch(real={12: 10}).real_of_slots == {12: 10, 40: 30}


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda report: pickle.loads(pickle.dumps(report)), dataclasses.replace]
)
def test_a_copy_has_the_fields_and_works_out_rows_of_its_own(report, copied):
    report = dataclasses.replace(report, memory=None)  # arrays compare by identity
    fresh = repr(report), report.to_json()
    before = report.to_frame("families")
    again = copied(report)
    assert "rows" not in vars(again)
    assert again == report
    assert (repr(again), again.to_json()) == fresh
    assert again.to_frame("families").equals(before)

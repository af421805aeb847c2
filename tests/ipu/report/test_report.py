"""The report says what a step costs on the machine, without running it."""

import dataclasses
import itertools
import json

import pytest
import torch

from popgeo import ipu
from popgeo.ipu.cost.plan import Activity, Profile
from tests.support.small_models import ContinuousFilters, make_batch


def compiled(**options):
    torch.manual_seed(0)
    model = ContinuousFilters().double()
    step = ipu.training_model(model, ipu.Options(**options), torch.optim.Adam(model.parameters()))
    return step.compile(**make_batch(0))


@pytest.fixture(scope="module")
def report():
    return compiled().report.for_batch(graphs=2, real={12: 11, 40: 30})


def test_a_report_of_a_large_gather_comes_without_running_it():
    def gather(x, index):
        assert isinstance(x, torch._subclasses.FakeTensor)
        return x.index_select(0, index)

    x, index = torch.empty(4096, 512), torch.empty(32768, dtype=torch.int64)
    report = ipu.compile(gather, [x, index], target=ipu.IpuTarget.bow()).report
    assert report.total_cycles > 10_000
    assert report.microseconds == pytest.approx(report.total_cycles / 1850)


def test_cycles_of_supersteps_sum_to_the_total_and_the_host_is_apart(report):
    steps = [(cost.count, step) for cost in report.costs for step in cost.plan.supersteps]
    on_device = sum(n * step.calibrated for n, step in steps if step.activity is not Activity.HOST)
    assert report.total_cycles == round(on_device)
    assert report.cycles_by_activity[Activity.HOST] > 0
    assert report.profile is Profile.CALIBRATED


def test_a_step_costs_each_micro_batch_and_one_update(report):
    model = ContinuousFilters().double()
    batch = {name: tensor.repeat([3] + [1] * (tensor.dim() - 1)) for name, tensor in make_batch(0).items()}
    options = ipu.Options(gradient_accumulation=3)
    three = ipu.training_model(model, options, torch.optim.Adam(model.parameters())).compile(**batch).report
    micro, update = [
        sum(c.plan.cycles(report.profile) for c in report.costs if c.phase in phases)
        for phases in (("forward", "backward"), ("update",))
    ]
    adds = [cost for cost in three.costs if cost.phase == "accumulate"]
    assert [cost.target for cost in adds] == ["aten.add_.Tensor"]
    accumulation = sum(cost.count * cost.plan.cycles(report.profile) for cost in adds)
    assert three.total_cycles == pytest.approx(3 * micro + accumulation + update, abs=1)


def test_replicas_work_side_by_side_and_add_up_their_gradients(report):
    model = ContinuousFilters().double()
    batch = {name: tensor.repeat([2] + [1] * (tensor.dim() - 1)) for name, tensor in make_batch(0).items()}
    options = ipu.Options(replication_factor=2)
    both = ipu.training_model(model, options, torch.optim.Adam(model.parameters())).compile(**batch).report
    (reduce,) = [cost for cost in both.costs if cost.plan.family == "collective"]
    parameters = sum(p.numel() for p in model.parameters())
    assert reduce.plan.supersteps[0].bytes_total == 8 * parameters  # each sends half of its gradients, twice
    assert both.total_cycles == pytest.approx(report.total_cycles + reduce.plan.cycles(report.profile), abs=1)
    assert both.for_batch(graphs=2).graphs_per_second == pytest.approx(2 * 2e6 / both.microseconds)
    assert "2 x Bow" in str(both)


def test_the_update_costs_the_same_before_and_after_the_first_one():
    step = compiled()
    before = step.report
    step(**make_batch(0))
    step.destroy()
    step(**make_batch(0))
    step(**make_batch(0))
    assert before.update_captured is None
    assert step.report.update_captured is True
    assert step.report.costs == before.costs


@pytest.mark.parametrize("rows", ["ops", "supersteps", "blocks", "families"])
def test_every_table_adds_up_to_the_total(report, rows):
    table = report.to_frame(rows)
    host = table[table.isin(["host", "(host)"]).any(axis=1)]
    assert table["cycles"].sum() - host["cycles"].sum() == pytest.approx(report.total_cycles, abs=0.5)


def test_a_module_costs_what_its_submodules_cost_and_what_it_asks_for_itself(report):
    table = report.to_frame("modules").set_index("module")
    assert table.loc["(model)", "cycles"] == pytest.approx(report.total_cycles, abs=0.5)
    assert table["own"].sum() == pytest.approx(report.total_cycles, abs=0.5)
    filters = table[table.index.str.fullmatch(r"filters\.0\.\d")]
    assert len(filters) == 2
    assert table.loc["filters.0", "cycles"] == pytest.approx(filters["cycles"].sum() + table.loc["filters.0", "own"])
    assert table.loc["updates.0", ["forward", "backward"]].sum() == pytest.approx(table.loc["updates.0", "cycles"])


def test_other_tables_are_refused(report):
    with pytest.raises(ValueError, match="No rows of 'layers'; a report has ops, supersteps"):
        report.to_frame("layers")


def test_it_prints_on_one_screen(report):
    lines = str(report).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert f"{report.total_cycles:,} cycles" in lines[1]
    assert "graphs/s" in lines[1]
    assert any("this computer (not IPU time)" in line for line in lines)


def test_it_survives_json(report):
    text = report.to_json()
    back = ipu.Report.from_json(text)
    assert back.to_json() == text
    assert dataclasses.replace(back, memory=None) == dataclasses.replace(report, memory=None)
    assert json.loads(text)["version"] == 1
    with pytest.raises(ValueError, match=r"found \('popgeo.ipu.report', 99\)"):
        ipu.Report.from_json(text.replace('"version": 1', '"version": 99', 1))
    with pytest.raises(ValueError, match="No report"):
        ipu.Report.from_json("cycles: 7")


def test_graphs_per_second_follow_from_the_clock_and_the_real_graphs(report):
    assert report.graphs_per_second == pytest.approx(2 * 1.85e9 / report.total_cycles)
    assert compiled().report.graphs_per_second is None
    with pytest.raises(ValueError, match="real at most slots"):
        report.for_batch(real={12: 13})


def test_reports_add_up_to_what_both_cost(report):
    both = report + report
    assert both.total_cycles == pytest.approx(2 * report.total_cycles, abs=1)
    assert both.total == report.total + report.total
    assert both.graphs_per_second == pytest.approx(report.graphs_per_second, rel=1e-3)
    with pytest.raises(ValueError, match=r"Reports add up on one target and profile, not Bow .* and GC2"):
        report + dataclasses.replace(report, target=ipu.IpuTarget.gc2())


def test_a_comparison_explains_the_whole_difference():
    double = ipu.compile(lambda x: (2 * x).relu(), [torch.ones(300_000)]).report
    half = ipu.compile(lambda x: (2 * x).relu(), [torch.ones(150_000)]).report
    comparison = double.compare(half)
    for rows in ("families", "ops"):
        table = comparison.to_frame(rows)
        table = table[~table.isin(["host", "(host)"]).any(axis=1)]
        assert table["difference"].sum() == pytest.approx(half.total_cycles - double.total_cycles, abs=1)
    assert comparison.speedup == pytest.approx(double.total_cycles / half.total_cycles)
    assert "mul" in str(comparison)
    assert double.compare(double).to_frame("ops")["difference"].abs().max() == 0


def test_the_trace_gives_each_superstep_its_place_in_time(report):
    trace = json.loads(report.to_chrome_trace())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert {"(optimizer)", "filters.0"} <= names
    device = sorted((e for e in spans if not e["cat"].startswith("host")), key=lambda e: e["ts"])
    for event, following in itertools.pairwise(device):
        assert following["ts"] == pytest.approx(event["ts"] + event["dur"])
    assert sum(event["dur"] for event in device) == pytest.approx(report.microseconds, rel=1e-3)


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


def test_a_function_that_only_looks_at_memory_costs_nothing_and_is_shown_all_the_same():
    report = ipu.compile(lambda x: x.view(-1), [torch.ones(3, 2)]).report
    assert report.total_cycles == 0
    assert "0 cycles" in str(report)
    assert not report.insights
    assert report.compare(report).speedup == 1
    assert report.for_batch(graphs=3).graphs_per_second is None
    assert report.to_html()
    assert len(report.to_frame("families")) == 2  # host and view

"""Text, tables, JSON, page, trace and picture of a pipeline agree."""

import copy
import json
import pickle
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from torch import empty, nn, ones

from popgeo import ipu
from popgeo.ipu.report import pages
from popgeo.ipu.report.tables import COLUMNS_OF_STAGES, TableColumn
from tests.ipu.systems.conftest import plan_of
from tests.support.pages import run_page

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "many_ipus.md"


class Outline(HTMLParser):
    """The parts of a page: ids, addresses, and open tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids, self.open, self.addresses = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.addresses += [given[key] for key in ("src", "href") if key in given]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_text_tables_json_page_and_trace_tell_one_story(long_plan):
    told, page, held = str(long_plan), long_plan.to_html(), json.loads(long_plan.to_json())
    stages, ipus = long_plan.to_frame(), long_plan.to_frame("ipus")
    assert list(stages["layers"]) == [stage.layers for stage in long_plan.stages]
    assert len(long_plan.tasks) == 2 * 4 * 64
    for said in (f"{long_plan.cycles:,.0f}", f"{long_plan.bubble:.1%}", f"IPU {long_plan.bottleneck}"):
        assert said in told
        assert said in page
    assert held["cycles"] == long_plan.cycles
    assert [row["wait"] for row in held["table_of_ipus"]] == ipus["wait"].tolist()
    assert [row["memory"] for row in held["table_of_stages"]] == stages["memory"].tolist()
    for row in stages.to_dict("records"):
        for said in (row["layers"], f"{row['forward']:,.0f}", f"{row['memory']:.0%}"):
            assert said in told
            assert said in page
    for insight in long_plan.insights:
        assert insight.title in told
        assert insight.title in page
        assert insight.title in [one["title"] for one in held["insights_found"]]
        assert insight.remedy in long_plan._repr_html_()
    events = [e for e in json.loads(long_plan.to_chrome_trace())["traceEvents"] if e["ph"] == "X"]
    table = long_plan.to_frame("spans")
    assert len(events) == len(table)
    assert max(e["ts"] + e["dur"] for e in events) == pytest.approx(1e6 * long_plan.seconds)
    assert max(map(len, told.splitlines())) <= 100


def test_what_an_ipu_does_adds_up_to_the_step(long_plan):
    table = long_plan.to_frame("ipus")
    parts = ["forward", "backward", "receive", "host", "streaming", "update", "wait"]
    assert table[parts].sum(axis=1).tolist() == pytest.approx([long_plan.cycles] * 4)
    assert table["wait"].sum() / (4 * long_plan.cycles) == pytest.approx(long_plan.bubble)
    per_micro_batch = long_plan.to_frame()
    passes = per_micro_batch[["forward", "backward", "receive", "other"]].sum(axis=1)
    busy = table[["forward", "backward", "receive", "host", "streaming"]].sum(axis=1)
    assert busy.tolist() == pytest.approx((64 * passes).tolist())
    assert table["receive"].tolist() == pytest.approx((64 * per_micro_batch["receive"]).tolist())
    memory = table[["weights", "optimizer", "stashes", "working"]].sum(axis=1)
    assert memory.tolist() == pytest.approx(table["memory"].tolist())
    assert table["memory"].tolist() == list(long_plan.memory)


def test_every_table_says_what_its_columns_are(long_plan):
    for rows in ("stages", "ipus", "spans", "transfers", "insights"):
        table = long_plan.to_frame(rows)
        assert set(table.columns) == table.attrs["about"].keys() == table.attrs["units"].keys()
        assert all(table.attrs["about"].values())
    with pytest.raises(ValueError, match=r"a pipeline has stages, ipus, spans, transfers, ops, .*families, insights"):
        long_plan.to_frame("layers")


def test_the_guide_lists_every_column_that_only_stages_have():
    tables: dict[TableColumn, list[str]] = {}
    for rows in ("stages", "ipus", "spans", "transfers"):
        for column in COLUMNS_OF_STAGES[rows]:
            tables.setdefault(column, []).append(f"`{rows}`")
    lines = [f"| `{c.name}` | {', '.join(its)} | {c.unit} | {c.about} |" for c, its in tables.items()]
    shown = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    assert shown == lines, "put this into the guide:\n" + "\n".join(lines)


def test_a_plan_has_the_tables_of_its_operations_too(long_plan):
    families = long_plan.to_frame("families").set_index("family")
    assert families.loc["matmul", "ops"] == 64 * (8 + 15)  # per micro-batch; the input needs no gradient
    in_passes = sum(stage.forward + stage.backward for stage in long_plan.stages)
    cycles = long_plan.to_frame("ops").groupby("phase")["cycles"].sum()
    assert cycles["forward"] + cycles["backward"] == pytest.approx(64 * in_passes)
    assert cycles["update"] == pytest.approx(sum(long_plan.update_parts["optimizer"]))
    assert cycles["accumulate"] == pytest.approx(64 * sum(stage.accumulate for stage in long_plan.stages))
    assert long_plan.total.flops == long_plan.to_frame("ops")["flops"].sum()


def test_a_plan_is_compared_with_another_and_told_what_a_micro_batch_holds(long_plan):
    other = long_plan.replan(stages=2)
    assert long_plan.compare(other).speedup == pytest.approx(long_plan.cycles / other.cycles, rel=1e-6)
    assert long_plan.for_batch(graphs=3).graphs_per_second == 3 * long_plan.micro_batches_per_second
    assert long_plan.graphs_per_second is None


@pytest.mark.parametrize("schedule", ipu.Schedule)
def test_windows_show_both_ends_of_a_long_step_and_all_of_a_short_one(long_plan, schedule):
    longer, short = long_plan.replan(schedule=schedule, micro_batches=256), long_plan.replan(micro_batches=4)
    assert short.windows == [(0.0, short.cycles)]
    shown = longer.windows
    assert (shown[0][0], shown[-1][1]) == (0.0, longer.cycles)
    assert sum(end - start for start, end in shown) < 0.4 * longer.cycles
    assert all(before[1] < after[0] for before, after in pairwise(shown))


def test_a_page_is_well_formed_and_loads_nothing(long_plan):
    page = long_plan.to_html(title="Two < three & more")
    outline = Outline(page)
    assert not outline.open
    assert len(set(outline.ids)) == len(outline.ids)
    assert all(address.startswith("#") and address[1:] in outline.ids for address in outline.addresses)
    assert not re.search(r"https?://|@import|url\(", page)
    assert "<h1>Two &lt; three &amp; more</h1>" in page


def test_the_script_of_a_page_draws_what_each_ipu_does(tmp_path):
    small = plan_of(256, 256, 256, stages=2, count=3)
    small.to_html(tmp_path / "page.html")
    second = small.spans[-1].end - small.update[1] / 2  # while IPU 1 updates
    page = run_page(tmp_path / "page.html", at=(78 + (1150 - 78) * second / small.cycles, 24 + 26 + 5))
    for number in (0, 1):
        drawn = [box for box in page["drawn"] if box[0] == "fillRect" and box[3] == 25 + 26 * number]
        update, own = small.update[number], [stage for stage in small.stages if stage.ipu == number]
        for kind, cycles in (("update", update), ("forward", 3 * sum(stage.forward for stage in own))):
            width = sum(box[4] for box in drawn if box[1] == f"--{kind}")
            assert width == pytest.approx(1072 * cycles / small.cycles, abs=3)  # three edges between boxes
    words = [box[2] for box in page["drawn"] if box[0] == "fillText" and box[1] == "#fff"]
    assert words.count("0") == words.count("2") == 4
    assert page["told"].startswith("update\n")


def test_a_page_leaves_out_the_middle_of_a_very_long_step(long_plan, monkeypatch):
    monkeypatch.setattr(pages, "MOST_SPANS", 700)
    page = long_plan.to_html()
    assert '"micro_batch": 0,' in page
    assert '"micro_batch": 63,' in page
    assert '"micro_batch": 30,' not in page
    assert "in the middle of the step are left out" in page


def test_a_layer_of_any_name_cannot_break_the_page():
    model = nn.Sequential()
    model.add_module("<u>1", nn.Linear(8, 8))
    model.add_module("<i>2", nn.Linear(8, 8))
    page = ipu.pipeline(model, [empty(8, 8)], stages=2).to_html()
    assert "<u>1" not in page
    assert "&lt;u&gt;1" in page


def test_a_plan_is_read_back_with_what_stood_out_but_cannot_be_planned_again(long_plan):
    read = ipu.Pipeline.from_json(long_plan.to_json())
    assert str(read) == str(long_plan)
    assert read.to_frame("spans").equals(long_plan.to_frame("spans"))
    assert read.to_html() == long_plan.to_html()
    with pytest.raises(ValueError, match="it has no model"):
        read.replan(micro_batches=2)
    for text in ("{}", "[]", "no JSON", long_plan.to_json().replace('"version": 2', '"version": 0', 1)):
        with pytest.raises(ValueError, match="No pipeline"):
            ipu.Pipeline.from_json(text)


def test_a_copy_keeps_the_figures_and_leaves_the_model(long_plan):
    for other in (copy.deepcopy(long_plan), pickle.loads(pickle.dumps(long_plan))):
        assert other.plan_again is None
        assert other.cycles == long_plan.cycles
        assert other.memory == long_plan.memory
        assert str(other).splitlines()[:8] == str(long_plan).splitlines()[:8]


@pytest.mark.parametrize("form", ["to_html", "to_json", "to_chrome_trace"])
def test_a_form_is_written_where_it_is_wanted(long_plan, tmp_path, form):
    content = getattr(long_plan, form)(tmp_path / "new" / "plan")
    assert (tmp_path / "new" / "plan").read_text(encoding="utf-8") == content


def test_planning_again_is_planning_anew(long_plan):
    choices = {"stages": 2, "schedule": "grouped", "recompute": True}
    again = long_plan.replan(**choices, micro_batches=3, replicas=2)
    anew = plan_of(*[256] * 9, count=3, replicas=2, **choices)
    assert str(again).partition("planned in")[0] == str(anew).partition("planned in")[0]
    assert again.memory == anew.memory
    assert again.extra_bytes == anew.extra_bytes
    same = long_plan.replan()
    assert (same.cycles, same.layers) == (long_plan.cycles, long_plan.layers)


def test_spans_of_an_ipu_follow_each_other_and_a_pass_receives_first(long_plan):
    by_ipu = {ipu: [s for s in long_plan.spans if s.ipu == ipu] for ipu in range(4)}
    for number, own in by_ipu.items():
        assert all(a.end <= b.start + 1e-6 for a, b in pairwise(own))
        assert own[-1].kind == "update"
        assert sum(s.end - s.start for s in own) == pytest.approx(long_plan.busy[number])
    assert long_plan.to_frame("transfers")["nbytes"].sum() == sum(s.received_bytes for s in long_plan.stages)
    assert long_plan.cycles_by_kind[0]["receive"] == pytest.approx(64 * long_plan.stages[0].receive_backward)


def test_a_stage_begins_at_any_module_also_inside_of_a_layer_or_called_in_parts():
    class InParts(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
            self.head = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))

        def forward(self, x):
            return self.head[1](self.head[0](self.body(x)).sin()).sum()

    def stages(begins):
        plan = ipu.pipeline(InParts(), [ones(4, 8)], ipu.Options(device_iterations=8), stages=begins)
        return [(stage.layers, stage.ipu) for stage in plan.stages]

    assert stages({"body.1.1": 1, "head": 0}) == [
        ("body.0 to body.1", 0),
        ("body.1 to body.2", 1),
        ("head.0 to head.1", 0),
    ]
    assert stages({"body": 0, "body.2": 1}) == [("body.0 to body.1", 0), ("body.2 to head.1", 1)]
    with pytest.raises(ValueError, match=r"names 'body\.3', but no layer has this name"):
        stages({"body.3": 1})


def test_a_schedule_may_have_its_name_in_tensorflow():
    names = {"PipelineSchedule.Grouped": "lock_step", "PipelineSchedule.Sequential": "sharded"}
    assert {name: ipu.Options(schedule=name).schedule for name in names} == names

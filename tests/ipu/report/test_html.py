"""The page of a report needs only a browser, and contains every figure that it draws."""

import json
import re
from html.parser import HTMLParser

import pytest
import torch

from popgeo import ipu
from popgeo.ipu.report.html_page import script_of
from popgeo.ipu.report.pages import SCRIPTS
from popgeo.ipu.report.tables import COLUMNS
from tests.support.pages import run_page

SCRIPT = script_of(*SCRIPTS)


class Outline(HTMLParser):
    """The parts of a page: ids, open tags, addresses, and its data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.texts: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.addresses += [given[key] for key in ("src", "href") if key in given]
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts[self.open[-1] if self.open else ""] = self.texts.get(self.open[-1] if self.open else "", "") + data


def data(page: str):
    return json.loads(re.search(r'<script type="application/json" id="report">(.*?)</script>', page, re.S)[1])


def test_a_page_is_well_formed_and_loads_nothing(report):
    page = report.to_html()
    outline = Outline(page)
    assert not outline.open
    assert len(set(outline.ids)) == len(outline.ids)
    assert all(address.startswith("#") and address[1:] in outline.ids for address in outline.addresses)
    assert not re.search(r"https?://|@import|url\(", page)


def test_a_page_has_a_place_for_all_that_its_script_draws(report):
    page = report.to_html()
    wanted = set(re.findall(r'getElementById\("([\w-]+)"\)|canvas\("([\w-]+)"', page))
    without_memory = {"memory-key", "tiles", "liveness"} if report.memory is None else set()
    assert {a or b for a, b in wanted} - without_memory <= set(Outline(page).ids)


def test_a_page_draws_the_figures_of_the_report(report):
    page = report.to_html(title="Two < three & more")
    drawn = data(page)
    assert sum(op["cycles"] for op in drawn["ops"] if op["phase"] != "host") == pytest.approx(
        report.total_cycles, abs=1
    )
    assert len(drawn["supersteps"]) == sum(len(cost.plan.supersteps) for cost in report.costs)
    assert f"{report.total_cycles:,}" in page
    assert "<h1>Two &lt; three &amp; more</h1>" in page
    for insight in report.insights:
        assert insight.title in page


def test_what_a_model_is_called_cannot_break_the_page():
    class Odd(torch.nn.Module):
        def forward(self, x):
            return x * 2

    model = torch.nn.Sequential()
    model.add_module("</script><b>", Odd())
    page = ipu.compile(model, [torch.ones(4)]).report.to_html()
    assert "</script><b>" not in page
    assert any(op["module"] == "</script><b>" for op in data(page)["ops"])


def test_a_page_has_the_columns_of_the_tables_and_says_what_they_mean(report):
    about = data(report.to_html())["about"]
    assert about == {rows: {c.name: c.about for c in columns} for rows, columns in COLUMNS.items()}
    shared = set(re.findall(r'const (\w+) = \{ key: "\1"', SCRIPT)) | {"share", "balance"}
    for table, rows in (("operations", "ops"), ("families",) * 2, ("modules",) * 2, ("supersteps",) * 2):
        body = re.search(
            rf"^  {table}: \[\n    report\.{rows},\n(.*?)    report\.about\.{rows},$", SCRIPT, re.S | re.M
        )[1]
        keys = set(re.findall(r'key: "(\w+)"', body)) | {
            name for name in shared if re.search(rf"^ +{name},$", body, re.M)
        }
        assert len(keys) > 3
        assert keys <= about[rows].keys()


def test_a_notebook_shows_the_families_and_a_shell_one_line(report):
    shown = report._repr_html_()
    assert not Outline(shown).open
    assert f"{report.total_cycles:,} cycles" in shown
    assert ">matmul</td>" in shown
    assert "\n" not in repr(report)
    assert len(repr(report)) < 100


def test_the_script_of_the_page_draws_every_superstep_in_its_lane(report, tmp_path):
    report.to_html(tmp_path / "page.html")
    steps = [step for step in report.rows.supersteps if step["activity"] != "host"]
    longest = max((step for step in steps if step["activity"] == "compute"), key=lambda step: step["length"])
    middle = (longest["start"] + longest["length"] / 2) / (steps[-1]["start"] + steps[-1]["length"])
    page = run_page(tmp_path / "page.html", at=(round(78 + (1150 - 78) * middle), 24 + 42 + 5))
    boxes = [box for box in page["drawn"] if box[0] == "fillRect"]
    for lane, activity in enumerate(("compute", "exchange", "sync"), 1):
        own = [box for box in boxes if box[1] == f"--{activity}" and box[3] == 24 + 42 * lane + 3]
        assert len(own) == sum(step["activity"] == activity for step in steps)
    assert page["told"].startswith(f"{longest['op']}: {longest['step']} (compute)\n")


@pytest.mark.parametrize(("limit", "words"), [(2.0, ""), (5.0, ""), (50.0, "times as high as this picture")])
def test_each_picture_of_memory_has_a_line_where_a_tile_is_full(report, tmp_path, limit, words):
    page = report.to_html()
    memory = data(page)["memory"]
    memory["limit"] = round(limit * max(memory["peak"]))
    held = re.search(r'id="report">(.*?)</script>', page, re.S)[1]
    (tmp_path / "page.html").write_text(page.replace(held, json.dumps(data(page) | {"memory": memory})))
    drawn = run_page(tmp_path / "page.html")["drawn"]
    said = [box for box in drawn if box[0] == "fillText" and str(box[2]).startswith("a tile has ")]
    assert len(said) == 2
    assert all(words in box[2] and 0 < box[4] < 200 for box in said)


def test_a_name_in_the_flame_view_is_whole_or_ends_in_an_ellipsis(report, tmp_path):
    page = report.to_html()
    assert "text-overflow: ellipsis" in re.search(r"#flame-view div \{(.*?)\}", page, re.S)[1]
    (tmp_path / "page.html").write_text(page)
    named = [(name, float(width[:-2])) for name, width in run_page(tmp_path / "page.html")["labels"]]
    assert len(named) > 10  # a letter is 6 pixels wide there
    assert [name for name, width in named if name and 6 * len(name) > width - 10 and width < 50] == []
    assert [width for name, width in named if not name and width > 50] == []

"""Rows of a report add up to its total, are computed once, and are read-only."""

import collections
import dataclasses

import pandas as pd
import pytest

from popgeo.ipu.report.cost_rows import CostRows

ROWS = ("ops", "supersteps", "modules", "families", "blocks")


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


FORMS = {
    "text": str,
    "page": lambda report: report.to_html(),
    "notebook": lambda report: report._repr_html_(),
    "insights": lambda report: report.insights,
    "trace": lambda report: report.to_chrome_trace(),
    "frame": lambda report: [report.to_frame(kind) for kind in ("ops", "families", "families", "insights")],
    "comparison": lambda report: str(report.compare(report)),
}


@pytest.fixture
def calls(monkeypatch):
    """Return the number of computations of each kind of rows."""
    counted = collections.Counter()

    def counting(name, function):
        def count(*arguments):
            counted[name] += 1
            return function(*arguments)

        return count

    for name in ROWS:
        table = vars(CostRows)[name]
        monkeypatch.setattr(table, "func", counting(name, table.func))
    return counted


@pytest.mark.parametrize("form", FORMS)
def test_each_form_works_out_each_table_at_most_once(report, calls, form):
    FORMS[form](report.for_batch(graphs=2))
    assert calls
    assert set(calls.values()) == {1}


def test_all_forms_together_work_out_each_table_once(report, calls):
    report = report.for_batch(graphs=2)
    for show in FORMS.values():
        show(report)
    assert calls == dict.fromkeys(ROWS, 1)


class Counted(dict):
    """An operation's row that counts the reads of its family."""

    looks = 0

    def __getitem__(self, key):
        Counted.looks += key == "family"
        return super().__getitem__(key)


def test_families_are_grouped_in_one_pass(report):
    ops = [Counted(row) for row in report.rows.ops]
    rows = dataclasses.replace(report.rows)
    vars(rows)["ops"] = ops
    assert len(rows.families) > 3
    assert Counted.looks == len(ops)


def test_what_a_caller_does_to_a_table_harms_no_other(report):
    before = report.to_frame("ops")
    mine = report.to_frame("ops")
    mine["cycles"] = 0.0
    mine.attrs["units"].clear()
    pd.testing.assert_frame_equal(report.to_frame("ops"), before)
    assert report.to_frame("ops").attrs == before.attrs
    with pytest.raises(TypeError, match="does not support item assignment"):
        report.rows.ops[0]["cycles"] = 0.0

"""Figures of a report show each cycle and byte of its tables once."""

import dataclasses

import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose

from popgeo import ipu, plots

TARGET = dataclasses.replace(ipu.IpuTarget.bow(), num_tiles=8)


@pytest.fixture(scope="module")
def report():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    return ipu.compile(model, [torch.ones(64, 8)], target=TARGET).report


def widths(ax):
    return sum(bar.get_width() for bar in ax.patches)


def test_the_timeline_shows_each_superstep_for_as_long_as_it_lasts(report):
    ax = plots.bsp_timeline(report.to_frame("supersteps"), clock=report.target.clock)
    spans = [path.get_extents() for lane in ax.collections for path in lane.get_paths()]
    assert sum(span.width for span in spans) == pytest.approx(report.microseconds, rel=1e-3)
    assert ax.get_xlim() == pytest.approx((0, report.microseconds), rel=1e-3)
    assert ax.get_xlabel() == "time (µs)"


@pytest.mark.parametrize("rows", ["families", "blocks"])
def test_bars_add_up_to_the_cycles_of_the_step(report, rows):
    ax = plots.cycles_by(report.to_frame(rows))
    assert widths(ax) == pytest.approx(report.total_cycles, abs=1)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["compute", "exchange", "sync"]


def test_only_the_most_expensive_rows_are_drawn():
    table = pd.DataFrame({"family": list("abc"), "compute": [1, 3, 2], "exchange": 0, "sync": 0})
    assert [label.get_text() for label in plots.cycles_by(table, rows=2).get_yticklabels()] == ["b", "c"]


def test_memory_by_tile_stacks_up_to_the_peak_of_each_tile(report):
    ax = plots.memory_by_tile(pd.DataFrame(report.memory.categories), limit=report.memory.limit)
    tops = max((patch.get_data().values for patch in ax.patches), key=lambda values: values.sum())
    assert_allclose(tops, report.memory.peak)
    assert ax.lines[0].get_ydata()[0] == report.memory.limit


def test_liveness_marks_the_operation_at_which_most_is_held(report):
    ax = plots.liveness(report.memory.curve, limit=report.memory.limit)
    peak = ax.lines[0].get_xydata()[0]
    assert_allclose(peak, [report.memory.peak_op + 0.5, report.memory.curve.max()])


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: plots.bsp_timeline(pd.DataFrame({"start": [0]})), "lacks .*'activity'"),
        (lambda: plots.cycles_by(pd.DataFrame({"module": ["a"]})), "lacks .*'compute'"),
        (lambda: plots.memory_by_tile(pd.DataFrame()), "no tile to draw"),
        (lambda: plots.liveness([]), r"shape \(0,\)"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(draw, words):
    with pytest.raises(ValueError, match=words):
        draw()

"""Figures of a pipeline show each span of its table once, and each IPU's shares."""

import pandas as pd
import pytest
from numpy.testing import assert_allclose

from popgeo import plots

SPANS = pd.DataFrame(
    [
        ("forward", 0, 0, 0, 10),
        ("receive", 1, 0, 10, 12),
        ("forward", 1, 0, 12, 22),
        ("backward", 1, 0, 22, 42),
        ("backward", 0, 0, 42, 62),
        ("update", 0, None, 62, 70),
    ],
    columns=["kind", "ipu", "micro_batch", "start", "end"],
)
IPUS = pd.DataFrame(
    {"forward": [10, 10], "backward": [20, 20], "receive": [0, 2], "update": [8, 0], "wait": [32, 38]}
    | {"weights": [0.5, 0.25], "optimizer": 0.5, "stashes": [0.25, 0.0], "working": 0.1}
)


def extents(ax):
    return [path.get_extents() for bars in ax.collections for path in bars.get_paths()]


def test_a_timeline_draws_each_span_in_the_row_of_its_ipu():
    ax = plots.pipeline_timeline(SPANS, clock=1e3)
    drawn = sorted((round(e.x0), round(e.x1), round(e.y0 + 0.42)) for e in extents(ax) if e.height < 1)
    assert drawn == sorted(zip(SPANS["start"], SPANS["end"], SPANS["ipu"], strict=True))
    assert ax.get_xlabel() == "time (ms)"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["IPU 0", "IPU 1"]
    assert ax.get_xlim() == (0, 70)


def test_a_timeline_of_parts_cuts_spans_where_they_end():
    ax = plots.pipeline_timeline(SPANS, between=[(0, 15), (50, 70)])
    backward = [e for e in extents(ax) if e.height < 1 and e.x0 > 15]
    assert_allclose([e.width for e in sorted(backward, key=lambda e: e.x0)], [12, 8])
    assert "…" in [text.get_text() for text in ax.texts]
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels[0] == "0"
    assert labels[-1] == "70"


def test_bars_of_an_ipu_add_up_to_the_step_and_to_its_memory():
    ax = plots.cycles_by_ipu(IPUS)
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(2.0)
    ax = plots.memory_by_ipu(IPUS)
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(1.35 + 0.85)
    assert ax.get_title() == "Memory by IPU: at most 135 %"
    assert ax.get_xlim()[1] > 1.35


def test_a_table_that_lacks_something_is_refused():
    with pytest.raises(ValueError, match=r"lacks .*'kind'"):
        plots.pipeline_timeline(SPANS.drop(columns="kind"))
    with pytest.raises(ValueError, match="no span to draw"):
        plots.pipeline_timeline(SPANS[:0])
    with pytest.raises(ValueError, match=r"lacks .*'wait'"):
        plots.cycles_by_ipu(IPUS.drop(columns="wait"))

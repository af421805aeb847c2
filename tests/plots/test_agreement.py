"""A cost model is drawn against measurements, with its median error in the legend."""

import pandas as pd
import pytest
from numpy.testing import assert_allclose

from popgeo import plots

TABLE = pd.DataFrame(
    {"op": ["gather"] * 3 + ["scatter"], "measured": [100.0, 100, 100, 50], "modelled": [110, 80, 101, 50]}
)


def test_each_op_has_its_points_and_its_median_error():
    ax = plots.agreement(TABLE)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["gather: median error 10.0 %", "scatter: median error 0.0 %", "within 25 %"]
    _, gather, scatter = ax.get_lines()
    assert_allclose(gather.get_xydata(), TABLE[["measured", "modelled"]][:3])
    assert_allclose(scatter.get_xydata(), [[50, 50]])
    assert ax.get_xlim() == ax.get_ylim()


def test_figures_that_have_no_logarithm_are_refused():
    with pytest.raises(ValueError, match="is not positive"):
        plots.agreement(TABLE.assign(modelled=0.0))

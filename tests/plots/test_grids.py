"""Grids of ratios show each ratio in its cell, on a scale with 1 in its middle."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from popgeo import plots
from tests.support.figures import GRID


def test_surfaces_put_each_ratio_in_its_cell_one_panel_an_op():
    gather, scatter = plots.surfaces(GRID, x="rows", y="channels", panel="op", title="Ratios")
    assert (gather.get_title(), scatter.get_title()) == ("gather", "scatter")
    assert gather.figure.get_suptitle() == "Ratios"
    cells = np.ma.filled(gather.collections[0].get_array().reshape(2, 2), np.nan)
    assert_allclose(cells, [[1, -1], [3, np.nan]])  # log2 of the ratio; rows are channels 16, 32
    assert [label.get_text() for label in gather.get_xticklabels()] == ["$2^{6}$", "$2^{7}$"]
    assert [label.get_text() for label in gather.get_yticklabels()] == ["$2^{4}$", "$2^{5}$"]
    assert {text.get_text() for text in gather.texts} == {"2", "0.5", "8"}
    assert gather.get_ylim()[0] < gather.get_ylim()[1]


def test_surfaces_draw_the_geometric_mean_of_repeated_cells_on_a_scale_with_1_in_its_middle():
    table = pd.DataFrame({"rows": [64, 64], "channels": [16, 16], "ratio": [2.0, 8.0]})
    (ax,) = plots.surfaces(table, x="rows", y="channels")
    mesh = ax.collections[0]
    assert mesh.get_array().item() == pytest.approx(2)
    assert mesh.norm(0.0) == 0.5


def test_surfaces_of_many_cells_carry_no_numbers():
    rows, channels = np.meshgrid(2 ** np.arange(11), 2 ** np.arange(11))
    table = pd.DataFrame({"rows": rows.ravel(), "channels": channels.ravel(), "ratio": 2.0})
    (ax,) = plots.surfaces(table, x="rows", y="channels")
    assert len(ax.texts) == 0
    assert len(ax.get_xticklabels()) == 11


@pytest.mark.parametrize("column", ["rows", "channels", "ratio"])
def test_surfaces_refuse_what_has_no_logarithm(column):
    with pytest.raises(ValueError, match=rf"\['{column}'\] contain numbers that are not positive"):
        plots.surfaces(GRID.assign(**{column: 0}), x="rows", y="channels")

"""Every figure names its units, draws on the given Axes, and changes nothing else."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from popgeo import plots
from tests.support.figures import (
    BOUND,
    DRAW,
    EFFICIENCY,
    FILL,
    GIVEN,
    GRID,
    HISTORY,
    IID,
    ON_GIVEN_AXES,
    PACKED,
    PRISTINE,
    SUMMARY,
)


@pytest.mark.parametrize("name", DRAW)
def test_a_figure_has_names_and_ink_and_leaves_its_inputs_and_all_global_state_as_they_were(name, tmp_path):
    before, figures = dict(mpl.rcParams), plt.get_fignums()
    ax = DRAW[name]()
    assert isinstance(ax.figure, Figure)
    ax.figure.savefig(tmp_path / "figure.png", dpi=40)
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == figures
    red, green, blue = (255 * plt.imread(tmp_path / "figure.png")[..., :3]).round().astype(int).transpose(2, 0, 1)
    assert len(np.unique(red << 16 | green << 8 | blue)) > 20
    for given, pristine in zip(GIVEN, PRISTINE, strict=True):
        pd.testing.assert_frame_equal(given, pristine)
    assert PACKED.tolist() == [17.5, 18.5, 18.0]
    assert IID.tolist() == [15.0, 21.0, 18.0]
    if name != "molecule":  # a molecule has a scale bar instead
        assert ax.get_xlabel()
        assert ax.get_ylabel()
        assert ax.get_title()


@pytest.mark.parametrize("name", ON_GIVEN_AXES)
def test_a_given_axes_is_the_one_drawn_on(name):
    ax = Figure().add_subplot()
    assert DRAW[name](ax) is ax
    assert ax.has_data()


def test_nodes_edges_and_graphs_keep_their_colours_from_figure_to_figure():
    fill = [to_rgb(line.get_color()) for line in plots.batch_fill(FILL[["nodes", "edges"]]).get_lines()]
    bars = [to_rgb(bars.patches[0].get_facecolor()) for bars in DRAW["strategies"]().containers]
    assert fill == bars
    assert to_rgb(plots.batch_fill(FILL[["edges"]]).get_lines()[0].get_color()) == bars[1]


@pytest.mark.parametrize(
    ("draw", "missing"),
    [
        (lambda: plots.loss_curve(HISTORY.drop(columns="train_mae")), "train_mae"),
        (lambda: plots.batch_fill(HISTORY), "nodes"),
        (lambda: plots.strategies(FILL), "strategy"),
        (lambda: plots.strategies(SUMMARY[["strategy"]]), "nodes"),
        (lambda: plots.efficiency_over_budget(BOUND), "strategy"),
        (lambda: plots.efficiency_over_budget(EFFICIENCY, bound=FILL), "num_nodes"),
        (lambda: plots.surfaces(GRID, x="lines", y="channels"), "lines"),
        (lambda: plots.surfaces(GRID, x="rows", y="channels", panel="kind"), "kind"),
    ],
)
def test_a_table_that_lacks_a_column_is_refused_by_its_name(draw, missing):
    with pytest.raises(ValueError, match=rf"The table has the columns .*'{missing}'"):
        draw()


def test_panels_share_a_figure_and_a_look():
    panels = plots.panels(2, 2, title="four")
    assert len({id(ax.figure) for ax in panels}) == 1
    assert [ax.get_subplotspec().num1 for ax in panels] == [0, 1, 2, 3]
    assert panels[0].figure.get_suptitle() == "four"

"""Figures show the numbers they are given, name their units, and leave everything else as it was."""

from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

from popgeo import plots

HISTORY = pd.DataFrame(
    {"epoch": [1, 2, 3], "train_mae": [900.0, 500.0, 400.0], "validation_mae": [800.0, 600.0, 550.0]}
)
FILL = pd.DataFrame({"nodes": [0.98, 0.96], "edges": [0.9, 0.8], "graphs": [0.5, 0.7]})
EFFICIENCY = pd.DataFrame(
    {"strategy": ["window", "stream", "window"], "num_nodes": [128, 64, 64], "efficiency": [0.99, 0.9, 0.95]}
)
BOUND = pd.DataFrame({"num_nodes": [128, 64], "efficiency": [1.0, 0.97]})
SUMMARY = pd.DataFrame({"strategy": ["pad to max", "window"], "nodes": [0.62, 0.99], "edges": [0.6, 0.98]})
GRID = pd.DataFrame(
    {
        "op": ["gather"] * 3 + ["scatter"],
        "rows": [64, 128, 64, 64],
        "channels": [16, 16, 32, 16],
        "ratio": [2.0, 0.5, 8, 1],
    }
)
MEASURED = pd.DataFrame({"op": ["gather", "scatter"], "measured": [1e3, 2e3], "modelled": [1.1e3, 1.9e3]})
EDGES, REAL = np.array([[0, 1, 3], [1, 0, 3]]), np.array([True, True, True, False])
WATER = SimpleNamespace(
    z=np.array([8, 1, 1, 0]),  # the last atom is padding
    pos=np.array([[0.0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0], [9, 9, 9]]),
    edge_index=np.array([[0, 1, 0, 2], [1, 0, 2, 0]]),
    edge_attr=np.eye(4)[[0, 0, 0, 0]],
)
SUPERSTEPS = pd.DataFrame({"activity": ["exchange", "compute"], "start": [0, 300], "length": [300, 900]})
BLOCKS = pd.DataFrame({"module": ["a", "b"], "compute": [9, 20], "exchange": [5, 1], "sync": [1, 1]})
TILES = pd.DataFrame({"values": [100, 80], "stack": [32, 32]})
GIVEN = (HISTORY, FILL, EFFICIENCY, BOUND, SUMMARY, GRID, SUPERSTEPS, BLOCKS, TILES)
PRISTINE = [table.copy() for table in GIVEN]  # before any test has drawn
PACKED, IID = np.array([17.5, 18.5, 18.0]), np.array([15.0, 21.0, 18.0])

DRAW = {
    "loss_curve": lambda ax=None: plots.loss_curve(HISTORY, mean_predictor=2150.0, ax=ax),
    "prediction_scatter": lambda ax=None: plots.prediction_scatter([4.0, 6.0, 9.0], [4.5, 5.5, 9.0], ax=ax),
    "batch_fill": lambda ax=None: plots.batch_fill(FILL, ax=ax),
    "efficiency_over_budget": lambda ax=None: plots.efficiency_over_budget(EFFICIENCY, bound=BOUND, ax=ax),
    "strategies": lambda ax=None: plots.strategies(SUMMARY, ax=ax),
    "batch_mean_sizes": lambda ax=None: plots.batch_mean_sizes(PACKED, IID, ax=ax),
    "agreement": lambda ax=None: plots.agreement(MEASURED, ax=ax),
    "adjacency": lambda ax=None: plots.adjacency(EDGES, 4, batch=[0, 0, 1, 2], nodes_mask=REAL, ax=ax),
    "batch_layout": lambda ax=None: plots.batch_layout([[3, 4], [5]], num_slots=8, ax=ax),
    "size_histogram": lambda ax=None: plots.size_histogram([3, 5, 5], ax=ax),
    "molecule": lambda ax=None: plots.molecule(WATER.z, WATER.pos, WATER.edge_index, WATER.edge_attr, ax=ax),
    "bsp_timeline": lambda ax=None: plots.bsp_timeline(SUPERSTEPS, ax=ax),
    "cycles_by": lambda ax=None: plots.cycles_by(BLOCKS, ax=ax),
    "memory_by_tile": lambda ax=None: plots.memory_by_tile(TILES, limit=150, ax=ax),
    "liveness": lambda ax=None: plots.liveness([200, 700, 300], limit=900, ax=ax),
    "surfaces": lambda ax=None: plots.surfaces(GRID, x="rows", y="channels", panel="op")[0],
}
ON_GIVEN_AXES = [name for name in DRAW if name != "surfaces"]


def lines(ax):
    return {line.get_label(): line for line in ax.get_lines()}


def texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize("name", DRAW)
def test_no_global_state_changes_and_pyplot_knows_of_no_figure(name):
    before, figures = dict(mpl.rcParams), plt.get_fignums()
    figure = DRAW[name]().figure
    figure.canvas.draw()
    assert isinstance(figure, Figure)
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == figures


@pytest.mark.parametrize("name", DRAW)
def test_inputs_come_back_unchanged(name):
    DRAW[name]()
    for given, pristine in zip(GIVEN, PRISTINE, strict=True):
        pd.testing.assert_frame_equal(given, pristine)
    assert PACKED.tolist() == [17.5, 18.5, 18.0]
    assert IID.tolist() == [15.0, 21.0, 18.0]


@pytest.mark.parametrize("name", DRAW)
def test_every_figure_can_be_saved_and_is_not_blank(name, tmp_path):
    DRAW[name]().figure.savefig(tmp_path / "figure.png", dpi=40)
    pixels = plt.imread(tmp_path / "figure.png")[..., :3]
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


@pytest.mark.parametrize("name", [name for name in DRAW if name != "molecule"])  # which has a scale bar instead
def test_every_axis_is_named(name):
    ax = DRAW[name]()
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert ax.get_title()


@pytest.mark.parametrize("name", ON_GIVEN_AXES)
def test_a_given_axes_is_the_one_drawn_on(name):
    ax = Figure().add_subplot()
    assert DRAW[name](ax) is ax
    assert ax.has_data()


def test_loss_curve_draws_both_errors_and_the_mean_predictor_in_mev():
    ax = DRAW["loss_curve"]()
    drawn = lines(ax)
    for label in ("train", "validation"):
        assert_allclose(drawn[label].get_xydata(), HISTORY[["epoch", f"{label}_mae"]])
    assert_allclose(drawn["predicting the mean: 2,150 meV"].get_ydata(), 2150)
    assert ax.get_ylabel() == "mean absolute error (meV)"
    assert ax.get_ylim()[0] == 0


def test_loss_curve_without_a_mean_predictor_has_two_lines():
    assert list(lines(plots.loss_curve(HISTORY))) == ["train", "validation"]


def test_prediction_scatter_draws_the_points_their_error_and_the_diagonal():
    ax = plots.prediction_scatter([4.0, 6.0], [4.5, 5.5], quantity="dipole", unit="debye")
    assert_allclose(ax.collections[0].get_offsets(), [[4, 4.5], [6, 5.5]])
    assert_allclose(lines(ax)["predicted = computed"].get_xydata(), [[4, 4], [6, 6]])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("computed dipole (debye)", "predicted dipole (debye)")
    assert ax.get_title() == "Held-out molecules: MAE 0.500 debye"


@pytest.mark.parametrize("predicted", [[1.0], [[1.0], [2.0]]])
def test_predictions_of_another_shape_are_refused(predicted):
    with pytest.raises(ValueError, match=r"computed has shape \(2,\)"):
        plots.prediction_scatter([1.0, 2.0], predicted)


def test_batch_fill_draws_each_batch_and_says_the_mean_in_percent():
    ax = DRAW["batch_fill"]()
    assert texts(ax) == ["nodes, mean 97.0 %", "edges, mean 85.0 %", "graphs, mean 60.0 %"]
    for line, column in zip(ax.get_lines(), FILL, strict=True):
        assert_allclose(line.get_xydata(), np.c_[[0, 1], FILL[column]])
    assert ax.yaxis.get_major_formatter()(0.5) == "50"
    assert "%" in ax.get_ylabel()


def test_nodes_edges_and_graphs_keep_their_colours_from_figure_to_figure():
    fill = [to_rgb(line.get_color()) for line in plots.batch_fill(FILL[["nodes", "edges"]]).get_lines()]
    bars = [to_rgb(bars.patches[0].get_facecolor()) for bars in DRAW["strategies"]().containers]
    assert fill == bars
    assert to_rgb(plots.batch_fill(FILL[["edges"]]).get_lines()[0].get_color()) == bars[1]


def test_efficiency_over_budget_draws_each_strategy_in_order_of_num_nodes_with_the_bound():
    drawn = lines(DRAW["efficiency_over_budget"]())
    assert list(drawn) == ["bound", "window", "stream"]
    assert_allclose(drawn["window"].get_xydata(), [[64, 0.95], [128, 0.99]])
    assert_allclose(drawn["stream"].get_xydata(), [[64, 0.9]])
    assert_allclose(drawn["bound"].get_xydata(), [[64, 0.97], [128, 1.0]])


def test_strategies_stand_side_by_side_with_their_percentages():
    ax = DRAW["strategies"]()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["pad to max", "window"]
    for bars, column in zip(ax.containers, ("nodes", "edges"), strict=True):
        assert bars.get_label() == column
        assert_allclose([bar.get_height() for bar in bars], SUMMARY[column])
    assert [text.get_text() for text in ax.texts] == ["62.0", "99.0", "60.0", "98.0"]
    left = [[bar.get_x() for bar in bars] for bars in ax.containers]
    assert left[0][0] < left[1][0] < left[0][1]


def test_batch_mean_sizes_are_densities_over_the_same_bins():
    ax = DRAW["batch_mean_sizes"]()
    assert texts(ax) == ["packed: 18.00 ± 0.41", "i.i.d.: 18.00 ± 2.45"]
    areas = []
    for collection in ax.collections:
        x, y = collection.get_paths()[0].vertices.T
        areas.append(abs(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))) / 2)
        assert x.min() >= 15 - 0.01
        assert x.max() <= 21 + 0.01
    assert_allclose(areas, 1, rtol=1e-6)


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
    with pytest.raises(ValueError, match=rf"\['{column}'\] hold numbers that are not positive"):
        plots.surfaces(GRID.assign(**{column: 0}), x="rows", y="channels")


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

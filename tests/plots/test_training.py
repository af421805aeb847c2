"""Curves and scatters of a training show the given errors with their units."""

import pandas as pd
import pytest
from numpy.testing import assert_allclose

from popgeo import plots
from popgeo.plots.training import error_curves
from tests.support.figures import DRAW, HISTORY, lines


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


@pytest.mark.parametrize("errors", [[930.0, 860.0, 800.0], [5.0], [0.0, 0.0], [float("nan"), 2.0], [float("nan")] * 2])
def test_each_error_lies_between_zero_and_the_upper_end_of_its_axis(errors):
    epochs = pd.DataFrame({"epoch": range(1, 1 + len(errors)), "train loss": 1.0, "valid loss": 1.0})
    _, ax = error_curves(epochs.assign(**{"forces meV/A MAE": errors}))
    low, high = ax.get_ylim()
    assert low == 0
    assert high > 1.04 * max([error for error in errors if error == error], default=0)

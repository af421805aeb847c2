"""How a training went: the error over the epochs, predictions against what was computed."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from popgeo.plots.style import REFERENCE, drawing, require


def loss_curve(history: pd.DataFrame, *, mean_predictor: float | None = None, ax: Axes | None = None) -> Axes:
    """Draws the error, or the loss, of training and validation in each epoch.

    Args:
        history: One row per epoch: `epoch`, and `train_mae` and `validation_mae` in meV, or the `train loss` and
            `valid loss` of the log of `popgeo train`, which are drawn on a logarithmic scale.
        mean_predictor: Error of predicting the mean, in meV; a dashed line.

    Example:
        >>> history = pd.DataFrame({"epoch": [1, 2], "train_mae": [900.0, 500.0], "validation_mae": [800.0, 600.0]})
        >>> loss_curve(history, mean_predictor=2150).get_ylabel()
        'mean absolute error (meV)'
    """
    columns = ("train loss", "valid loss") if "train loss" in history else ("train_mae", "validation_mae")
    require(history, "epoch", *columns)
    is_loss = columns[0] == "train loss"
    with drawing(ax) as ax:
        for column, marker in zip(columns, "os", strict=True):
            label = column.removesuffix("_mae").removesuffix(" loss")
            ax.plot(history["epoch"], history[column], marker=marker, label=label)
        if mean_predictor is not None:
            ax.axhline(mean_predictor, label=f"predicting the mean: {mean_predictor:,.0f} meV", **REFERENCE)
        ax.set(xlabel="epoch", ylabel="loss" if is_loss else "mean absolute error (meV)", title="Learning curve")
        if is_loss and (history[list(columns)] > 0).all(axis=None):
            ax.set_yscale("log")
        else:
            ax.set_ylim(0, None)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend()
    return ax


def prediction_scatter(
    computed: ArrayLike,
    predicted: ArrayLike,
    *,
    quantity: str = "HOMO-LUMO gap",
    unit: str = "eV",
    ax: Axes | None = None,
) -> Axes:
    """Draws what a model predicts for held-out molecules against what was computed; on the diagonal they agree.

    Args:
        computed: Targets, in `unit`. [num_molecules]
        predicted: Predictions, in `unit`. [num_molecules]
        quantity: What the axes show.
        unit: Unit of both.

    Raises:
        ValueError: the two differ in shape, or are empty.

    Example:
        >>> prediction_scatter([4.0, 6.0], [4.5, 5.5]).get_title()
        'Held-out molecules: MAE 0.500 eV'
    """
    x, y = np.asarray(computed, dtype=float), np.asarray(predicted, dtype=float)
    if x.shape != y.shape or x.size == 0:
        raise ValueError(f"computed has shape {x.shape}, predicted {y.shape}; pass one prediction per target.")
    with drawing(ax, size=(5.0, 5.0)) as ax:
        ax.scatter(x, y, s=12, alpha=min(1.0, 0.15 + 60 / x.size), linewidths=0, rasterized=True)
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        ax.plot(ends, ends, label="predicted = computed", **REFERENCE)
        ax.set(xlabel=f"computed {quantity} ({unit})", ylabel=f"predicted {quantity} ({unit})", aspect="equal")
        ax.set_title(f"Held-out molecules: MAE {np.abs(x - y).mean():.3f} {unit}")
        ax.legend(loc="upper left")
    return ax

"""Figures of a training run: errors over epochs, and predictions against computed values."""

import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from popgeo.plots.style import PALETTE, REFERENCE, drawing, panels, require


def loss_curve(history: pd.DataFrame, *, mean_predictor: float | None = None, ax: Axes | None = None) -> Axes:
    """Draw the error, or the loss, of training and validation in each epoch.

    Args:
        history: One row per epoch: `epoch`, and `train_mae` and `validation_mae` in meV; or `train loss` and `valid
            loss` of the log of `popgeo train`, drawn on a logarithmic scale.
        mean_predictor: Error of predicting the mean, in meV, drawn as a dashed line.
        ax: Axes to draw on. Default: a new figure.

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
            _begin_at_zero(ax)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend()
    return ax


def error_curves(history: pd.DataFrame) -> list[Axes]:
    """Draw the loss and each mean absolute error of validation over the epochs, next to each other.

    Args:
        history: The log of `popgeo train`: one row per epoch, with `train loss`, `valid loss` and columns such as
            `forces meV/A MAE`.

    Returns:
        One Axes for the loss, and one per error; `axes[0].figure` is the whole figure.

    Example:
        >>> row = {"epoch": 1, "train loss": 2.0, "valid loss": 3.0, "forces meV/A MAE": 50.0}
        >>> [axes.get_ylabel() for axes in error_curves(pd.DataFrame([row]))]
        ['loss', 'forces: validation MAE (meV/Å)']
    """
    errors = [name for name in history if name.endswith(" MAE")]
    first, *others = panels(1, 1 + len(errors), title="Learning curves")
    loss_curve(history, ax=first).set_title("")
    for ax, name in zip(others, errors, strict=True):
        quantity, unit, _ = name.split(" ")
        with drawing(ax):
            ax.plot(history["epoch"], history[name], marker="s", color=PALETTE[1])
            ax.set(xlabel="epoch", ylabel=f"{quantity}: validation MAE ({in_angstrom(unit)})")
            _begin_at_zero(ax)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return [first, *others]


def _begin_at_zero(ax: Axes) -> None:
    """Make the vertical axis begin at 0 and end above the highest marker."""
    highest = ax.dataLim.y1
    ax.set_ylim(0, 1.05 * highest if 0 < highest < np.inf else None)


def compared_losses(logs: Mapping[str, pd.DataFrame]) -> Axes:
    """Draw the validation losses of several runs in one figure, with the training losses as thin lines.

    Args:
        logs: The log of `popgeo train` of each run, by its name.

    Example:
        >>> log = pd.DataFrame({"epoch": [1, 2], "train loss": [2.0, 1.0], "valid loss": [3.0, 2.0]})
        >>> [text.get_text() for text in compared_losses({"wide": log, "deep": log}).get_legend().get_texts()]
        ['wide', 'deep']
    """
    with drawing(None) as ax:
        for (name, log), color in zip(logs.items(), itertools.cycle(PALETTE)):
            require(log, "epoch", "train loss", "valid loss")
            ax.plot(log["epoch"], log["valid loss"], marker="s", color=color, label=name)
            ax.plot(log["epoch"], log["train loss"], linewidth=0.7, color=color)
        ax.set(xlabel="epoch", ylabel="loss (thin: training)", title="Losses in validation")
        if all((log[["train loss", "valid loss"]] > 0).all(axis=None) for log in logs.values()):
            ax.set_yscale("log")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend()
    return ax


def in_angstrom(unit: str) -> str:
    """Return a unit as plots show it: `eV/A^3` becomes `eV/Å³`.

    Example:
        >>> in_angstrom("meV/A^3"), in_angstrom("eV/atom")
        ('meV/Å³', 'eV/atom')
    """
    return unit.replace("/A", "/Å").replace("^3", "³")


def prediction_scatter(
    computed: ArrayLike,
    predicted: ArrayLike,
    *,
    quantity: str = "HOMO-LUMO gap",
    unit: str = "eV",
    ax: Axes | None = None,
) -> Axes:
    """Draw predictions for held-out molecules against computed values; on the diagonal they are equal.

    Args:
        computed: Targets, in `unit`. [num_molecules]
        predicted: Predictions, in `unit`. [num_molecules]
        quantity: Name of the values, for the axes.
        unit: Unit of the values.
        ax: Axes to draw on. Default: a new figure.

    Raises:
        ValueError: the two shapes differ, or there are no values.

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
        margin = 0.05 * (ends[1] - ends[0]) or 1.0
        limits = ends[0] - margin, ends[1] + margin
        ax.set(xlim=limits, ylim=limits)  # equal scales
        ax.set_yticks([tick for tick in ax.get_xticks() if limits[0] <= tick <= limits[1]])
        ax.set_title(f"Held-out molecules: MAE {np.abs(x - y).mean():.3f} {unit}")
        ax.legend(loc="upper left", framealpha=0.5)  # points behind it stay visible
    return ax

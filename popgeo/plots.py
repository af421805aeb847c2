"""Every figure of popgeo: functions of DataFrames or arrays that draw on one Axes and return it.

All share one look, set for the length of a call; nothing of matplotlib's global state is changed, no figure is
registered with pyplot, and the arguments come back as they were. Each draws on the `ax` it is given, or on a figure of
its own: `loss_curve(history).figure`. A table that lacks a column is refused with a ValueError that names it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from math import ceil
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike

PALETTE = sns.color_palette("colorblind")
COLORS = {"nodes": PALETTE[0], "edges": PALETTE[1], "graphs": PALETTE[2]}
SIZE = (7.0, 4.0)  # inches; the width of a notebook cell
MAX_ANNOTATED_CELLS = 100
THEME: Any = sns.axes_style("whitegrid") | sns.plotting_context("notebook", font_scale=0.9)
THEME |= {"axes.prop_cycle": cycler(color=PALETTE)}
REFERENCE: dict[str, Any] = {"color": "0.35", "linestyle": "--", "linewidth": 1.2, "zorder": 1}


def loss_curve(history: pd.DataFrame, *, mean_predictor: float | None = None, ax: Axes | None = None) -> Axes:
    """Draws the train and validation error of each epoch.

    Args:
        history: One row per epoch: `epoch`, `train_mae` and `validation_mae` in meV.
        mean_predictor: Error of predicting the mean, in meV; a dashed line.

    Example:
        >>> history = pd.DataFrame({"epoch": [1, 2], "train_mae": [900.0, 500.0], "validation_mae": [800.0, 600.0]})
        >>> loss_curve(history, mean_predictor=2150).get_ylabel()
        'mean absolute error (meV)'
    """
    _require(history, "epoch", "train_mae", "validation_mae")
    with _drawing(ax) as ax:
        for column, marker in (("train_mae", "o"), ("validation_mae", "s")):
            ax.plot(history["epoch"], history[column], marker=marker, label=column.removesuffix("_mae"))
        if mean_predictor is not None:
            ax.axhline(mean_predictor, label=f"predicting the mean: {mean_predictor:,.0f} meV", **REFERENCE)
        ax.set(xlabel="epoch", ylabel="mean absolute error (meV)", title="Learning curve", ylim=(0, None))
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
    with _drawing(ax, size=(5.0, 5.0)) as ax:
        ax.scatter(x, y, s=12, alpha=min(1.0, 0.15 + 60 / x.size), linewidths=0, rasterized=True)
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        ax.plot(ends, ends, label="predicted = computed", **REFERENCE)
        ax.set(xlabel=f"computed {quantity} ({unit})", ylabel=f"predicted {quantity} ({unit})", aspect="equal")
        ax.set_title(f"Held-out molecules: MAE {np.abs(x - y).mean():.3f} {unit}")
        ax.legend(loc="upper left")
    return ax


def batch_fill(fill: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draws which share of each batch is real, not padding.

    Args:
        fill: One row per batch, in order; columns `nodes`, `edges`, `graphs` (those that are there), each from 0 to 1.

    Example:
        >>> ax = batch_fill(pd.DataFrame({"nodes": [0.98, 0.96], "graphs": [0.8, 0.7]}))
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['nodes, mean 97.0 %', 'graphs, mean 75.0 %']
    """
    with _drawing(ax) as ax:
        for column in _dimensions(fill):
            label = f"{column}, mean {100 * fill[column].mean():.1f} %"
            ax.plot(np.arange(len(fill)), fill[column], color=COLORS[column], label=label, marker=".", linewidth=1)
        ax.set(xlabel="batch", ylabel="real share of slots (%)", title="How full the batches are", ylim=(0, 1.05))
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend(loc="lower left")
    return ax


def efficiency_over_budget(table: pd.DataFrame, *, bound: pd.DataFrame | None = None, ax: Axes | None = None) -> Axes:
    """Draws how much of the node slots each packing strategy fills, against the number of nodes in a batch.

    Args:
        table: Columns `strategy`, `num_nodes`, `efficiency` (0 to 1).
        bound: Columns `num_nodes`, `efficiency`: what no strategy can exceed.

    Example:
        >>> table = pd.DataFrame({"strategy": "window", "num_nodes": [64, 128], "efficiency": [0.95, 0.99]})
        >>> efficiency_over_budget(table).get_xlabel()
        'num_nodes of a batch'
    """
    _require(table, "strategy", "num_nodes", "efficiency")
    with _drawing(ax) as ax:
        if bound is not None:
            _require(bound, "num_nodes", "efficiency")
            ax.plot("num_nodes", "efficiency", data=bound.sort_values("num_nodes"), label="bound", **REFERENCE)
        for marker, (strategy, rows) in zip(cycle("osD^vP*X"), table.groupby("strategy", sort=False), strict=False):
            ax.plot("num_nodes", "efficiency", data=rows.sort_values("num_nodes"), marker=marker, label=str(strategy))
        ax.set(xlabel="num_nodes of a batch", ylabel="efficiency (%)", title="Packing efficiency")
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
        ax.legend()
    return ax


def strategies(summary: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draws packing strategies side by side: the real share of nodes, edges and graphs.

    Args:
        summary: One row per strategy: `strategy`, and of `nodes`, `edges`, `graphs` those that are there, from 0 to 1.

    Example:
        >>> summary = pd.DataFrame({"strategy": ["pad to max", "window"], "nodes": [0.62, 0.99]})
        >>> [label.get_text() for label in strategies(summary).get_xticklabels()]
        ['pad to max', 'window']
    """
    _require(summary, "strategy")
    columns = _dimensions(summary)
    with _drawing(ax) as ax:
        width = 0.8 / len(columns)
        for i, column in enumerate(columns):
            at = np.arange(len(summary)) + (i - (len(columns) - 1) / 2) * width
            bars = ax.bar(at, summary[column], width, color=COLORS[column], label=column)
            ax.bar_label(bars, fmt=lambda share: f"{100 * share:.1f}", fontsize="x-small", padding=2)
        ax.set(xlabel="strategy", ylabel="real share of slots (%)", title="Packing strategies", ylim=(0, 1.05))
        ax.set_xticks(np.arange(len(summary)), summary["strategy"].astype(str))
        ax.grid(False, axis="x")
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
        ax.legend(ncols=len(columns), loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    return ax


def batch_mean_sizes(packed: ArrayLike, iid: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draws how the mean graph size of packed batches spreads, against batches drawn independently.

    Args:
        packed: Mean number of nodes per graph of each packed batch. [num_batches]
        iid: The same for batches of graphs drawn independently. [num_batches]

    Example:
        >>> batch_mean_sizes([17.5, 18.5, 18.0], [17.0, 19.0, 18.0]).get_xlabel()
        'mean number of nodes per graph in a batch'
    """
    sizes = {"packed": np.asarray(packed, dtype=float), "i.i.d.": np.asarray(iid, dtype=float)}
    bins = np.histogram_bin_edges(np.concatenate(list(sizes.values())), bins=30)
    with _drawing(ax) as ax:
        for (name, means), color in zip(sizes.items(), PALETTE, strict=False):
            label = f"{name}: {means.mean():.2f} ± {means.std():.2f}"
            sns.histplot(means, bins=bins, stat="density", element="step", alpha=0.3, color=color, label=label, ax=ax)
        ax.set(xlabel="mean number of nodes per graph in a batch", ylabel="density", title="Mean size of batches")
        ax.legend()
    return ax


def surfaces(
    table: pd.DataFrame, *, x: str, y: str, ratio: str = "ratio", panel: str | None = None, title: str = ""
) -> list[Axes]:
    """Draws a ratio over two axes of powers of two, one panel per kind of op; white is 1, blue above, red below.

    Args:
        table: One row per measurement; where several share a cell, their geometric mean is drawn.
        x, y, ratio: Columns of the horizontal axis, the vertical axis and the colour; positive numbers.
        panel: Column whose values get a panel each.
        title: Title of the whole figure.

    Raises:
        ValueError: one of the three columns holds a number that is not positive.

    Example:
        >>> table = pd.DataFrame({"num_rows": [64, 128], "channels": [16, 16], "ratio": [2.0, 0.5]})
        >>> [ax.get_xlabel() for ax in surfaces(table, x="num_rows", y="channels")]
        ['num_rows']
    """
    _require(table, x, y, ratio, *([panel] if panel else []))
    if bad := [column for column in (x, y, ratio) if not (table[column] > 0).all()]:
        raise ValueError(f"The columns {bad} hold numbers that are not positive; a log axis needs positive ones.")
    groups = {str(name): rows for name, rows in table.groupby(panel, sort=False)} if panel else {"": table}
    norm = CenteredNorm(0, max(np.log2(table[ratio]).abs().max(), 1e-9))
    with mpl.rc_context(THEME | {"axes.grid": False}):
        num_rows, num_columns = ceil(len(groups) / 2), min(len(groups), 2)
        figure = Figure(figsize=(SIZE[0] * num_columns / 1.4, SIZE[1] * num_rows), layout="constrained")
        axes = [figure.add_subplot(num_rows, num_columns, i + 1) for i in range(len(groups))]
        for ax, (name, rows) in zip(axes, groups.items(), strict=True):
            cells = np.log2(rows[[x, y, ratio]]).pivot_table(index=y, columns=x, values=ratio, aggfunc="mean")
            powers = [[f"$2^{{{power:.3g}}}$" for power in axis] for axis in (cells.columns, cells.index)]
            text = {"annot": cells.size <= MAX_ANNOTATED_CELLS and np.exp2(cells), "annot_kws": {"fontsize": "x-small"}}
            sns.heatmap(
                cells, ax=ax, cmap="RdBu", norm=norm, cbar=False, fmt=".2g", xticklabels=1, yticklabels=1, **text
            )
            ax.invert_yaxis()
            ax.set(xlabel=x, ylabel=y, title=name, xticklabels=powers[0])
            ax.set_yticklabels(powers[1], rotation=0)
        bar = figure.colorbar(axes[0].collections[0], ax=axes, label=ratio, ticks=MaxNLocator(7, integer=True))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda power, _: f"{2.0**power:g}"))
        figure.suptitle(title)
    return axes


@contextmanager
def _drawing(ax: Axes | None, size: tuple[float, float] = SIZE) -> Iterator[Axes]:
    """The Axes to draw on, made where none is given, and the one look of all figures while it is drawn on."""
    with mpl.rc_context(THEME):
        yield Figure(figsize=size, layout="constrained").add_subplot() if ax is None else ax


def _dimensions(table: pd.DataFrame) -> list[str]:
    if not (found := [column for column in COLORS if column in table]):
        raise ValueError(f"The table has the columns {list(table)}; at least one of {list(COLORS)} is needed.")
    return found


def _require(table: pd.DataFrame, *columns: str) -> None:
    if missing := [column for column in columns if column not in table]:
        raise ValueError(f"The table has the columns {list(table)} and lacks {missing}; add or rename them.")

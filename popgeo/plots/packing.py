"""Figures of packing: the real share of batches, and their mean sizes."""

from itertools import cycle
from typing import Any, cast

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike

from popgeo.plots.style import COLORS, PALETTE, REFERENCE, dimensions, drawing, require


def batch_fill(fill: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the real share of each batch.

    Args:
        fill: One row per batch, in order, with some of the columns `nodes`, `edges`, `graphs`, from 0 to 1.
        ax: Axes to draw on. Default: a new figure.

    Example:
        >>> ax = batch_fill(pd.DataFrame({"nodes": [0.98, 0.96], "graphs": [0.8, 0.7]}))
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['nodes, mean 97.0 %', 'graphs, mean 75.0 %']
    """
    with drawing(ax) as ax:
        look: dict[str, Any] = {"markersize": 3.5, "linewidth": 1}
        for marker, column in zip("osD", dimensions(fill), strict=False):
            label = f"{column}, mean {100 * fill[column].mean():.1f} %"
            ax.plot(np.arange(len(fill)), fill[column], color=COLORS[column], label=label, marker=marker, **look)
        ax.set(xlabel="batch", ylabel="real share of slots (%)", title="How full the batches are", ylim=(0, 1.05))
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend(loc="lower left")
    return ax


def efficiency_over_budget(table: pd.DataFrame, *, bound: pd.DataFrame | None = None, ax: Axes | None = None) -> Axes:
    """Draw the share of node slots that each packing strategy fills, against the nodes of a batch.

    Args:
        table: Columns `strategy`, `num_nodes`, `efficiency` (0 to 1).
        bound: Columns `num_nodes`, `efficiency`: the upper bound of all strategies.
        ax: Axes to draw on. Default: a new figure.

    Example:
        >>> table = pd.DataFrame({"strategy": "window", "num_nodes": [64, 128], "efficiency": [0.95, 0.99]})
        >>> efficiency_over_budget(table).get_xlabel()
        'num_nodes of a batch'
    """
    require(table, "strategy", "num_nodes", "efficiency")
    with drawing(ax) as ax:
        if bound is not None:
            require(bound, "num_nodes", "efficiency")
            ax.plot("num_nodes", "efficiency", data=bound.sort_values("num_nodes"), label="bound", **REFERENCE)
        for marker, (strategy, rows) in zip(cycle("osD^vP*X"), table.groupby("strategy", sort=False), strict=False):
            ax.plot("num_nodes", "efficiency", data=rows.sort_values("num_nodes"), marker=marker, label=str(strategy))
        ax.set(xlabel="num_nodes of a batch", ylabel="efficiency (%)", title="Packing efficiency")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}"))
        ax.legend()
    return ax


def strategies(summary: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the real share of nodes, edges and graphs of packing strategies next to each other.

    Args:
        summary: One row per strategy: `strategy`, and some of `nodes`, `edges`, `graphs`, from 0 to 1.
        ax: Axes to draw on. Default: a new figure.

    Example:
        >>> summary = pd.DataFrame({"strategy": ["pad to max", "window"], "nodes": [0.62, 0.99]})
        >>> [label.get_text() for label in strategies(summary).get_xticklabels()]
        ['pad to max', 'window']
    """
    require(summary, "strategy")
    columns = dimensions(summary)
    with drawing(ax) as ax:
        summary.plot.bar(x="strategy", y=columns, color=COLORS, width=0.8, rot=0, ax=ax)
        for bars in ax.containers[-len(columns) :]:
            ax.bar_label(cast(BarContainer, bars), fmt=lambda share: f"{100 * share:.4g}", size="x-small", padding=2)
        ax.set(xlabel="strategy", ylabel="real share of slots (%)", title="Packing strategies", ylim=(0, 1.1))
        ax.grid(False, axis="x")
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
        ax.legend(ncols=len(columns), loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    return ax


def batch_mean_sizes(packed: ArrayLike, iid: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw the distribution of the mean graph size of packed batches and of independently drawn batches.

    Args:
        packed: Mean number of nodes per graph of each packed batch. [num_batches]
        iid: Mean number of nodes per graph of each independently drawn batch. [num_batches]
        ax: Axes to draw on. Default: a new figure.

    Example:
        >>> batch_mean_sizes([17.5, 18.5, 18.0], [17.0, 19.0, 18.0]).get_xlabel()
        'mean number of nodes per graph in a batch'
    """
    sizes = {"packed": np.asarray(packed, dtype=float), "i.i.d.": np.asarray(iid, dtype=float)}
    bins = np.histogram_bin_edges(np.concatenate(list(sizes.values())), bins=30)
    with drawing(ax) as ax:
        for (name, means), color in zip(sizes.items(), PALETTE, strict=False):
            label = f"{name}: {means.mean():.2f} ± {means.std():.2f}"
            sns.histplot(means, bins=bins, stat="density", element="step", alpha=0.3, color=color, label=label, ax=ax)
        ax.set(xlabel="mean number of nodes per graph in a batch", ylabel="density", title="Mean size of batches")
        ax.legend()
    return ax

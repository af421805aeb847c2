"""Modelled figures against measured ones."""

from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from popgeo.plots.style import REFERENCE, drawing, require

MARKERS = "osD^vP*X"


def agreement(table: pd.DataFrame, *, unit: str = "cycles", within: float = 0.25, ax: Axes | None = None) -> Axes:
    """Draws what a model says against what was measured, both on a log axis; on the diagonal they agree.

    Args:
        table: One row per measurement: `op`, which has a marker and a median error of its own, `measured`, `modelled`.
        unit: Unit of both.
        within: The band drawn around the diagonal; 0.25 is a quarter more or less.

    Raises:
        ValueError: a figure is not positive, so it has no place on a log axis.

    Example:
        >>> table = pd.DataFrame({"op": "gather", "measured": [1000.0, 2000.0], "modelled": [1100.0, 1900.0]})
        >>> [text.get_text() for text in agreement(table).get_legend().get_texts()][0]
        'gather: median error 7.5 %'
    """
    require(table, "op", "measured", "modelled")
    if not (table[["measured", "modelled"]] > 0).all(axis=None):
        raise ValueError("A measured or modelled figure is not positive; a log axis needs positive ones.")
    with drawing(ax, size=(5.4, 5.0)) as ax:
        figures = table[["measured", "modelled"]].to_numpy(dtype=float)
        ends = np.array([0.8 * figures.min(), 1.25 * figures.max()])
        ax.fill_between(ends, ends / (1 + within), ends * (1 + within), color="0.9", label=f"within {100 * within:g} %")
        ax.plot(ends, ends, **REFERENCE)
        for marker, (op, rows) in zip(cycle(MARKERS), table.groupby("op", sort=False), strict=False):
            error = 100 * float((rows["modelled"] / rows["measured"] - 1).abs().median())
            label = f"{op}: median error {error:.1f} %"
            ax.plot(rows["measured"], rows["modelled"], marker, markersize=6, markeredgecolor="white", label=label)
        ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal", title="Modelled against measured")
        ax.set(xlabel=f"measured ({unit})", ylabel=f"modelled ({unit})")
        handles, labels = ax.get_legend_handles_labels()
        ax.legend([*handles[1:], handles[0]], [*labels[1:], labels[0]], loc="upper left")
    return ax

"""A number over two axes: one coloured grid per panel."""

from math import ceil

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from popgeo.plots.style import SIZE, THEME, require

MAX_ANNOTATED_CELLS = 100


def surfaces(
    table: pd.DataFrame, *, x: str, y: str, ratio: str = "ratio", panel: str | None = None, title: str = ""
) -> list[Axes]:
    """Draw a ratio over two axes of powers of two, one panel per kind; white is 1, blue above, red below.

    Args:
        table: One row per measurement. Measurements of one cell are drawn as their geometric mean.
        panel: Column with one panel for each value.
        title: Title of the whole figure.
        x: Column of the horizontal axis; positive numbers.
        y: Column of the vertical axis; positive numbers.
        ratio: Column of the colour; positive numbers.

    Raises:
        ValueError: a number in one of the three columns is not positive.

    Example:
        >>> table = pd.DataFrame({"num_rows": [64, 128], "channels": [16, 16], "ratio": [2.0, 0.5]})
        >>> [ax.get_xlabel() for ax in surfaces(table, x="num_rows", y="channels")]
        ['num_rows']
    """
    require(table, x, y, ratio, *([panel] if panel else []))
    if bad := [column for column in (x, y, ratio) if not (table[column] > 0).all()]:
        raise ValueError(f"The columns {bad} contain numbers that are not positive; a log axis needs positive numbers.")
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
            sns.heatmap(cells, ax=ax, cmap="RdBu", norm=norm, cbar=False, xticklabels=1, yticklabels=1, **text)
            ax.invert_yaxis()
            ax.set(xlabel=x, ylabel=y, title=name, xticklabels=powers[0])
            ax.set_yticklabels(powers[1], rotation=0)
        bar = figure.colorbar(axes[0].collections[0], ax=axes, label=ratio, ticks=MaxNLocator(7, integer=True))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda power, _: f"{2.0**power:g}"))
        figure.suptitle(title)
    return axes

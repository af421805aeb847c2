"""The common style of all figures, and the common steps before drawing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

PALETTE = sns.color_palette("colorblind")
COLORS = {"nodes": PALETTE[0], "edges": PALETTE[1], "graphs": PALETTE[2]}
SIZE = (7.0, 4.0)  # inches; the width of a notebook cell
THEME: Any = sns.axes_style("whitegrid") | sns.plotting_context("notebook", font_scale=0.9)
THEME |= {"axes.prop_cycle": cycler(color=PALETTE)}
REFERENCE: dict[str, Any] = {"color": "0.35", "linestyle": "--", "linewidth": 1.2, "zorder": 1}


def panels(
    num_rows: int = 1, num_columns: int = 1, *, size: tuple[float, float] | None = None, title: str = ""
) -> list[Axes]:
    """Return empty Axes next to each other on one figure, for the argument `ax` of other functions.

    Args:
        num_rows: Rows of Axes.
        num_columns: Columns of Axes.
        size: Width and height of the whole figure in inches.
        title: Title of the whole figure.

    Returns:
        The Axes, row by row; a notebook shows `axes[0].figure`.

    Example:
        >>> left, right = panels(1, 2, title="two pictures")
        >>> left.figure is right.figure
        True
    """
    with mpl.rc_context(THEME):
        width, height = size or (SIZE[0] * num_columns / 1.4 ** (num_columns > 1), SIZE[1] * num_rows)
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.suptitle(title)
        return [figure.add_subplot(num_rows, num_columns, i + 1) for i in range(num_rows * num_columns)]


def write_png(axes: Axes, path: Path) -> None:
    """Write the figure of the Axes as PNG."""
    assert isinstance(axes.figure, Figure)
    axes.figure.savefig(path, format="png", dpi=150, bbox_inches="tight")


@contextmanager
def drawing(ax: Axes | None, size: tuple[float, float] = SIZE) -> Iterator[Axes]:
    """Yield the Axes to draw on, created if missing, with the common style during the block."""
    with mpl.rc_context(THEME):
        yield Figure(figsize=size, layout="constrained").add_subplot() if ax is None else ax


def lighter(color: Any, share: float) -> NDArray[np.float64]:
    """Return a colour mixed with white; a share of 0 changes nothing, and 1 is white.

    The result has the shape [3].
    """
    return 1 - (1 - np.array(to_rgb(color))) * (1 - share)


def stacked(ax: Axes, table: pd.DataFrame, colors: Mapping[str, Any], names: Sequence[str], height: float) -> None:
    """Draw a stacked bar for each row of a table, the first on top, from the columns that have colours."""
    table[[*colors]].plot.barh(stacked=True, color=dict(colors), width=height, ax=ax, legend=False)
    ax.set_yticks(range(len(table)), names)
    ax.invert_yaxis()
    ax.grid(False, axis="y")


def dimensions(table: pd.DataFrame) -> list[str]:
    """Return the columns among nodes, edges and graphs that a table has.

    Raises:
        ValueError: the table has none of these columns.
    """
    if not (found := [column for column in COLORS if column in table]):
        raise ValueError(f"The table has the columns {list(table)}; add at least one of {list(COLORS)}.")
    return found


def require(table: pd.DataFrame, *columns: str) -> None:
    """Raise a ValueError if a table lacks one of these columns."""
    if missing := [column for column in columns if column not in table]:
        raise ValueError(f"The table has the columns {list(table)} and lacks {missing}; add or rename them.")

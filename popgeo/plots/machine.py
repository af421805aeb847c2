"""Figures of a report on the machine: time, cycles, memory, and agreement with measurements.

The tables come from `Report.to_frame`, and the memory of a step on this computer from `popgeo.memory`.
"""

from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter
from numpy.typing import ArrayLike

from popgeo.plots.style import PALETTE, REFERENCE, drawing, require, stacked

ACTIVITIES = {"compute": PALETTE[0], "exchange": PALETTE[1], "sync": PALETTE[7], "host": PALETTE[4]}
BYTES, SHORT_BYTES = EngFormatter(unit="B"), EngFormatter(unit="B", places=1)
MARKERS = "osD^vP*X"


def bsp_timeline(
    supersteps: pd.DataFrame,
    *,
    clock: float | None = None,
    between: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the activities of the machine over time, one lane per activity.

    Args:
        supersteps: `Report.to_frame("supersteps")`: `activity`, `start` and `length` in cycles. The host, which runs at
            the same time, is left out.
        clock: Cycles per second. With a clock, the axis shows microseconds.
        between: First and last cycle to show. Default: the whole step.
        ax: Axes to draw on. Default: a new figure.

    Example:
        >>> steps = pd.DataFrame({"activity": ["exchange", "compute"], "start": [0, 300], "length": [300, 900]})
        >>> ax = bsp_timeline(steps)
        >>> ax.get_xlabel(), [label.get_text() for label in ax.get_yticklabels()]
        ('cycles', ['compute', 'exchange', 'sync'])
    """
    require(supersteps, "activity", "start", "length")
    lanes = [name for name in ACTIVITIES if name != "host"]
    scale, unit = (1e6 / clock, "time (µs)") if clock else (1.0, "cycles")
    with drawing(ax, size=(9.0, 2.4)) as ax:
        for lane, name in enumerate(lanes):
            rows = supersteps[supersteps["activity"] == name]
            spans = list(zip(scale * rows["start"], scale * rows["length"], strict=True))
            ax.broken_barh(spans, (lane - 0.4, 0.8), color=ACTIVITIES[name], linewidth=0)
        ends = supersteps["start"] + supersteps["length"]
        first, last = between or (0.0, float(ends[supersteps["activity"] != "host"].max()))
        ax.set(xlabel=unit, ylabel="activity", title="Supersteps over time", xlim=(scale * first, scale * last))
        ax.set_yticks(range(len(lanes)), lanes)
        ax.set_ylim(len(lanes) - 0.5, -0.5)
        ax.grid(False, axis="y")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    return ax


def cycles_by(table: pd.DataFrame, *, rows: int = 12, ax: Axes | None = None) -> Axes:
    """Draw cycles by family or by block of the model, divided into compute, exchange and sync.

    Args:
        table: `Report.to_frame("families")` or `Report.to_frame("blocks")`: `family` or `module`, `compute`, `exchange`
            and `sync` in cycles.
        rows: Number of rows to draw, the most expensive first.
        ax: Axes to draw on. Default: a new figure.

    Example:
        >>> table = pd.DataFrame({"family": ["gather", "matmul"], "compute": [9, 20], "exchange": [5, 1], "sync": 1})
        >>> ax = cycles_by(table)
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['matmul', 'gather']
    """
    key = next((column for column in ("family", "module") if column in table), "family")
    parts = ["compute", "exchange", "sync"]
    require(table, key, *parts)
    table = table.assign(total=table[parts].sum(axis=1))
    table = table[table["total"] > 0].sort_values("total", ascending=False, kind="stable").head(rows)
    with drawing(ax, size=(7.0, 1.2 + 0.32 * len(table))) as ax:
        stacked(ax, table, {part: ACTIVITIES[part] for part in parts}, table[key].astype(str), height=0.8)
        kind = "block" if key == "module" else key
        ax.set(xlabel="cycles", ylabel=kind, title=f"Cycles by {kind}")
        ax.xaxis.set_major_formatter(EngFormatter(places=None))
        ax.legend(loc="lower right")
    return ax


def memory_by_tile(categories: pd.DataFrame, *, limit: float | None = None, ax: Axes | None = None) -> Axes:
    """Draw the memory of each tile, divided into categories.

    Args:
        categories: One row per tile, in order, and a column of bytes for each category:
            `pd.DataFrame(report.memory.categories)`.
        limit: Bytes of a tile, drawn as a dashed line.
        ax: Axes to draw on. Default: a new figure.

    Raises:
        ValueError: there is no tile.

    Example:
        >>> memory_by_tile(pd.DataFrame({"values": [100, 80], "stack": [32, 32]}), limit=1024).get_xlabel()
        'tile'
    """
    if not len(categories):
        raise ValueError("There is no tile to draw; pass one row per tile, pd.DataFrame(report.memory.categories).")
    with drawing(ax) as ax:
        tiles = np.arange(len(categories) + 1)
        base = np.zeros(len(categories))
        for number, name in enumerate(categories.sum().sort_values(ascending=False, kind="stable").index):
            top = base + categories[name].to_numpy()
            ax.stairs(top, tiles, baseline=base, fill=True, color=PALETTE[number % len(PALETTE)], label=str(name))
            base = top
        _limit(ax, limit)
        ax.set(xlabel="tile", ylabel="bytes at the tile's peak", title="Memory by tile", xlim=(0, len(categories)))
        ax.yaxis.set_major_formatter(BYTES)
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return ax


def memory_by_kind(table: pd.DataFrame, *, limit: float | None = None, ax: Axes | None = None) -> Axes:
    """Draw the memory of a step as a bar per way to run it, divided into kinds.

    Args:
        table: A row per kind, and a column of bytes per way: `popgeo.memory(...).to_frame()`.
        limit: Bytes of the memory, drawn as a dashed line.
        ax: Axes to draw on. Default: a new figure.

    Raises:
        ValueError: the table has no column.

    Example:
        >>> table = pd.DataFrame({"compiled": [100, 50], "eager": [100, 300]}, index=["weights", "activations"])
        >>> ax = memory_by_kind(table, limit=512)
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['compiled', 'eager']
    """
    if not len(table.columns):
        raise ValueError("The table has no column; pass popgeo.memory(...).to_frame().")
    kinds = table.T.rename(columns=lambda kind: str(kind).replace("_", " "))
    with drawing(ax, size=(7.0, 1.6 + 0.5 * len(kinds))) as ax:
        stacked(ax, kinds, dict(zip(kinds, PALETTE, strict=False)), [str(way) for way in kinds.index], height=0.6)
        if limit is not None:
            ax.axvline(limit, label=f"memory of {SHORT_BYTES(limit)}", **REFERENCE)
        ax.set(xlabel="bytes when they are most", ylabel="", title="Memory of a step")
        ax.xaxis.set_major_formatter(BYTES)
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return ax


def liveness(curve: ArrayLike, *, limit: float | None = None, ax: Axes | None = None) -> Axes:
    """Draw the memory of the fullest tile during each operation.

    Args:
        curve: Bytes for each operation, in order: `report.memory.curve`. [num_ops]
        limit: Bytes of a tile, drawn as a dashed line.
        ax: Axes to draw on. Default: a new figure.

    Raises:
        ValueError: there is no operation.

    Example:
        >>> liveness([200, 700, 300]).get_title()
        'Memory over a step: at most 700.0 B'
    """
    held = np.asarray(curve, dtype=float)
    if held.ndim != 1 or not held.size:
        raise ValueError(f"The curve has shape {held.shape}; pass one number of bytes per operation.")
    with drawing(ax) as ax:
        ax.stairs(held, np.arange(len(held) + 1), fill=True, alpha=0.35, color=PALETTE[0])
        ax.stairs(held, np.arange(len(held) + 1), color=PALETTE[0])
        ax.plot(held.argmax() + 0.5, held.max(), "o", color=PALETTE[3], label="peak")
        _limit(ax, limit)
        ax.set(xlabel="operation", ylabel="bytes on the fullest tile", xlim=(0, len(held)), ylim=(0, None))
        ax.set_title(f"Memory over a step: at most {SHORT_BYTES(held.max())}")
        ax.yaxis.set_major_formatter(BYTES)
        ax.legend(loc="lower right")
    return ax


def agreement(table: pd.DataFrame, *, unit: str = "cycles", within: float = 0.25, ax: Axes | None = None) -> Axes:
    """Draw modelled against measured figures on log axes; on the diagonal they are equal.

    Args:
        table: One row per measurement: `op`, `measured`, `modelled`. Each op has its own marker and median error.
        unit: Unit of both figures.
        within: Half-width of the band around the diagonal; 0.25 is a quarter more or less.
        ax: Axes to draw on. Default: a new figure.

    Raises:
        ValueError: a figure is not positive, so a log axis cannot show it.

    Example:
        >>> table = pd.DataFrame({"op": "gather", "measured": [1000.0, 2000.0], "modelled": [1100.0, 1900.0]})
        >>> [text.get_text() for text in agreement(table).get_legend().get_texts()][0]
        'gather: median error 7.5 %'
    """
    require(table, "op", "measured", "modelled")
    if not (table[["measured", "modelled"]] > 0).all(axis=None):
        raise ValueError("A measured or modelled figure is not positive; a log axis needs positive figures.")
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


def _limit(ax: Axes, limit: float | None) -> None:
    if limit is not None:
        ax.axhline(limit, label=f"a tile has {SHORT_BYTES(limit)}", **REFERENCE)

"""Figures of a step over several IPUs. The tables come from `Pipeline.to_frame`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from popgeo.plots.style import PALETTE, REFERENCE, drawing, require, stacked

KINDS = {
    "forward": PALETTE[0], "backward": PALETTE[2], "receive": PALETTE[1], "host": PALETTE[4], "streaming": PALETTE[3],
    "update": PALETTE[5], "wait": "0.9",
}  # fmt: skip
RARE = ("host", "streaming")
MEMORY = {"weights": PALETTE[0], "optimizer": PALETTE[9], "stashes": PALETTE[1], "working": PALETTE[2]}
GAP = 0.03  # share of the width for a part of the step that is left out
ROOM = 0.009  # share of the width for each digit of a micro-batch's number


def pipeline_timeline(
    spans: pd.DataFrame,
    *,
    clock: float | None = None,
    between: Sequence[tuple[float, float]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw each IPU's activities over time with micro-batch numbers, one row per IPU; grey is waiting.

    Args:
        spans: `Pipeline.to_frame("spans")`: `kind`, `ipu`, `micro_batch`, `start` and `end` in cycles.
        clock: Cycles per second. With a clock, the axis shows milliseconds.
        between: First and last cycle of each part to show, in order. Default: the whole step.
        ax: Axes to draw on. Default: a new figure.

    Raises:
        ValueError: there is no span to draw.

    Example:
        >>> spans = pd.DataFrame({"kind": ["forward", "backward"], "ipu": 0, "micro_batch": 0, "start": [0, 2]})
        >>> ax = pipeline_timeline(spans.assign(end=[2, 6]))
        >>> ax.get_xlabel(), [text.get_text() for text in ax.texts]
        ('cycles', ['0', '0'])
    """
    require(spans, "kind", "ipu", "micro_batch", "start", "end")
    if not len(spans):
        raise ValueError("There is no span to draw; pass Pipeline.to_frame('spans').")
    num_ipus = int(spans["ipu"].max()) + 1
    parts = list(between or [(0.0, float(spans["end"].max()))])
    whole = sum(end - start for start, end in parts)
    scale, unit = (1e3 / clock, "time (ms)") if clock else (1.0, "cycles")
    with drawing(ax, size=(10.0, max(2.2, 0.7 + 0.32 * num_ipus))) as ax:
        left, ticks = 0.0, dict[float, str]()
        for start, end in parts:
            inside = spans[(spans["end"] > start) & (spans["start"] < end)]
            ax.broken_barh([(left, end - start)], (-0.5, num_ipus), color=KINDS["wait"], linewidth=0)
            for kind, rows in inside.groupby("kind", sort=False):
                rows = rows.assign(start=rows["start"].clip(lower=start), end=rows["end"].clip(upper=end))
                _bars(ax, rows, left - start, str(kind), whole)
            ticks |= {left - start + mark / scale: f"{mark:,.10g}" for mark in _marks(start, end, whole, scale)}
            left += end - start + GAP * whole
            if end != parts[-1][1]:
                ax.text(left - GAP * whole / 2, (num_ipus - 1) / 2, "…", ha="center", va="center", fontsize="large")
        ax.set(xlabel=unit, title="Pipeline over time", xlim=(0, left - GAP * whole), ylim=(num_ipus - 0.5, -0.5))
        ax.set_yticks(range(num_ipus), [f"IPU {ipu}" for ipu in range(num_ipus)])
        ax.set_xticks(list(ticks), list(ticks.values()))
        ax.grid(False)
        shown = [kind for kind in KINDS if kind == "wait" or kind in set(spans["kind"])]
        patches = [ax.barh(0, 0, color=KINDS[kind], label=kind) for kind in shown]
        ax.legend(patches, shown, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return ax


def _bars(ax: Axes, rows: pd.DataFrame, shift: float, kind: str, whole: float) -> None:
    """Draw the spans of one kind, with the numbers of their micro-batches if they have room."""
    for ipu, own in rows.groupby("ipu"):
        lengths = own["end"] - own["start"]
        spans = list(zip(own["start"] + shift, lengths, strict=True))
        ax.broken_barh(spans, (float(ipu) - 0.42, 0.84), color=KINDS[kind], edgecolor="white", linewidth=0.3)
        if kind not in ("forward", "backward"):
            continue
        for number, start, length in zip(own["micro_batch"], own["start"], lengths, strict=True):
            words = f"{number:.0f}"
            if length > ROOM * (len(words) + 0.3) * whole:
                at = start + shift + length / 2
                ax.text(at, float(ipu), words, ha="center", va="center", color="white", fontsize="x-small")


def _marks(start: float, end: float, whole: float, scale: float) -> list[float]:
    """Return round numbers within a part, about ten over all parts."""
    raw = scale * whole / 9
    power = 10.0 ** np.floor(np.log10(raw))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= raw)
    return [float(m) for m in np.arange(np.ceil(scale * start / step), np.floor(scale * end / step) + 1) * step]


def cycles_by_ipu(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the share of each activity in a step, for each IPU.

    Args:
        table: `Pipeline.to_frame("ipus")`: `forward`, `backward`, `receive`, `update` and `wait` in cycles, and `host`
            and `streaming` if an IPU waits for them.
        ax: Axes to draw on. Default: a new figure.

    Example:
        >>> table = pd.DataFrame({"forward": [2, 1], "backward": 2, "receive": 0, "update": 1, "wait": [0, 1]})
        >>> cycles_by_ipu(table).get_xlabel()
        'share of a step'
    """
    require(table, *(kind for kind in KINDS if kind not in RARE))
    kinds = {kind: color for kind, color in KINDS.items() if kind not in RARE or table.get(kind, pd.Series([0])).any()}
    with drawing(ax, size=(7.0, max(2.2, 1.1 + 0.3 * len(table)))) as ax:
        _by_ipu(ax, table[[*kinds]].div(table[[*kinds]].sum(axis=1), axis=0), kinds)
        ax.set(xlabel="share of a step", title="Cycles by IPU", xlim=(0, 1))
    return ax


def memory_by_ipu(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the memory of the fullest tile of each IPU by category; a dashed line shows a tile's memory.

    Args:
        table: `Pipeline.to_frame("ipus")`: `weights`, `optimizer`, `stashes` and `working` as shares of a tile's
            memory.
        ax: Axes to draw on. Default: a new figure.

    Example:
        >>> table = pd.DataFrame({"weights": [0.2, 0.3], "optimizer": 0.1, "stashes": [0.3, 0.0], "working": 0.2})
        >>> memory_by_ipu(table).get_title()
        'Memory by IPU: at most 80 %'
    """
    require(table, *MEMORY)
    totals = table[[*MEMORY]].sum(axis=1)
    with drawing(ax, size=(7.0, max(2.2, 1.1 + 0.3 * len(table)))) as ax:
        _by_ipu(ax, table, MEMORY)
        ax.axvline(1.0, **REFERENCE)
        ax.set(xlabel="share of the fullest tile", xlim=(0, max(1.05, 1.05 * float(totals.max()))))
        ax.set_title(f"Memory by IPU: at most {100 * totals.max():.0f} %")
    return ax


def _by_ipu(ax: Axes, table: pd.DataFrame, colors: dict[str, Any]) -> None:
    stacked(ax, table, colors, [f"IPU {ipu}" for ipu in range(len(table))], height=0.75)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)

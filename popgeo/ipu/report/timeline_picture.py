"""The pictures of a pipeline's page: its timeline as PopVision draws pipelines, and bars for each IPU. All are SVG."""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise

from popgeo.ipu.report.pipeline_figures import PipelineFigures
from popgeo.ipu.report.timeline import SHOWN, Span

WIDTH, LEFT, TOP, GAP = 1200, 52, 22, 46  # of the picture, of its labels, of its axis, of what is left out
MOST_TIPS = 4_000  # spans; beyond that they come without words of their own, for the page's size


def timeline_picture(plan: PipelineFigures) -> str:
    """A row for each IPU: forward and backward passes by the number of the micro-batch, receiving, update; grey waits.

    What a pipeline repeats in the middle of a long step is left out.
    """
    shown = plan.windows
    row = 26 if plan.num_ipus <= 16 else 18
    bottom = TOP + row * plan.num_ipus
    scale = (WIDTH - LEFT - GAP * (len(shown) - 1)) / sum(end - start for start, end in shown)
    drawn = [span for span in plan.spans if any(span.end > start and span.start < end for start, end in shown)]
    parts = [f'<text x="0" y="{TOP + row * (i + 0.5) + 4:.0f}">IPU {i}</text>' for i in range(plan.num_ipus)]
    left = float(LEFT)
    for number, (start, end) in enumerate(shown):
        width = scale * (end - start)
        parts += _axis(plan, start, end, left, scale, bottom)
        for i in range(plan.num_ipus):
            parts.append(_box("wait", left, TOP + row * i + 2, width, row - 4))
        for span in drawn:
            begin, stop = max(span.start, start), min(span.end, end)
            if stop > begin:
                tip = _tip(plan, span) if len(drawn) <= MOST_TIPS else ""
                parts += _span(span, left + scale * (begin - start), scale * (stop - begin), row, tip)
        left += width + GAP
        if number + 1 < len(shown):
            parts.append(f'<text x="{left - GAP / 2:.0f}" y="{(TOP + bottom) / 2 + 4:.0f}" class="gap">…</text>')
    return _svg(parts + _whole(plan, shown, bottom), bottom + 34)


def left_out(plan: PipelineFigures) -> str:
    """What the timeline does not show, in words; empty if it shows all."""
    shown = plan.windows
    if len(shown) == 1:
        return ""
    seconds = sum(b - a for (_, a), (b, _) in pairwise(shown)) / plan.target.clock
    return f"Left out: {_time(seconds)} in which {plan.micro_batches - 2 * SHOWN:,} more micro-batches pass alike."


def bars(rows: Sequence[Mapping[str, float]], parts: Sequence[str], whole: float, limit: float | None = None) -> str:
    """A bar for each IPU that joins its parts, with the share of each in words.

    Args:
        rows: One an IPU.
        parts: Which of its columns to join, in order.
        whole: The value of 100 %.
        limit: Where to draw a dashed line, as a share.
    """
    row, width = 24, WIDTH - LEFT - 60
    longest = max([1.0, *(sum(of[part] for part in parts) / whole for of in rows)])
    drawn = []
    for number, of in enumerate(rows):
        y, x = 4 + row * number, float(LEFT)
        drawn.append(f'<text x="0" y="{y + row / 2 + 2:.0f}">IPU {number}</text>')
        for part in parts:
            share = of[part] / whole
            size = width * share / longest
            tip = f"IPU {number}: {part} {share:.1%}"
            drawn.append(_box(part, x, y, size, row - 6, tip))
            if size > 40 and part != "wait":
                drawn.append(f'<text class="on" x="{x + size / 2:.1f}" y="{y + row / 2 + 1:.0f}">{share:.0%}</text>')
            x += size
        used = sum(of[part] for part in parts if part != "wait") / whole
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + row / 2 + 2:.0f}">{used:.0%}</text>')
    if limit is not None:
        at = LEFT + width * limit / longest
        drawn.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{row * len(rows)}"/>')
    return _svg(drawn, row * len(rows) + 4)


def _span(span: Span, x: float, size: float, row: int, tip: str) -> Iterator[str]:
    """A span, as much of it as is shown; too thin ones are left out."""
    if size < 0.05:
        return
    y, edge = TOP + row * span.ipu + 2, 0.6 if size > 3 else 0.0
    yield _box(span.kind, x, y, size - edge, row - 4, tip)
    words = "update" if span.micro_batch is None else str(span.micro_batch)
    if span.kind in ("forward", "backward", "update") and size > 6 * len(words) + 5:
        yield f'<text class="on" x="{x + size / 2:.1f}" y="{y + row / 2 + 1.5:.1f}">{words}</text>'


def _tip(plan: PipelineFigures, span: Span) -> str:
    what = "" if span.micro_batch is None else f" of micro-batch {span.micro_batch}, stage {span.stage}"
    cycles = span.end - span.start
    return f"{span.kind}{what}: {cycles:,.0f} cycles, {_time(cycles / plan.target.clock)}"


def _box(kind: str, x: float, y: float, width: float, height: float, tip: str = "") -> str:
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    place = f'x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{height:g}"'
    return f'<rect class="{kind}" {place} fill="var(--{kind})"' + (f">{inside}</rect>" if inside else "/>")


def _axis(plan: PipelineFigures, start: float, end: float, x: float, scale: float, bottom: float) -> Iterator[str]:
    """Times over one part of the step."""
    unit = _nice(90 / scale / plan.target.clock) * plan.target.clock  # cycles from one mark to the next
    for number in range(math.ceil(start / unit), math.floor(end / unit) + 1):
        at = x + scale * (number * unit - start)
        if at > x + scale * (end - start) - 25 and number:
            continue
        yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 5}" y2="{bottom}"/>'
        seconds = number * unit / plan.target.clock
        yield f'<text x="{at:.1f}" y="12" text-anchor="{"middle" if number else "start"}">{_time(seconds)}</text>'


def _whole(plan: PipelineFigures, shown: Sequence[tuple[float, float]], bottom: float) -> list[str]:
    """Below, the whole step as a thin bar in which the parts shown are marked."""
    if len(shown) == 1:
        return []
    scale = (WIDTH - LEFT - 190) / plan.cycles
    parts = [_box("wait", LEFT, bottom + 14, scale * plan.cycles, 8)]
    for start, end in shown:
        parts.append(_box("forward", LEFT + scale * start, bottom + 14, scale * (end - start), 8))
    words = f"shown, of {_time(plan.seconds)} in all"
    parts.append(f'<text x="{LEFT + scale * plan.cycles + 8:.0f}" y="{bottom + 22:.0f}">{words}</text>')
    return parts


def _nice(seconds: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(seconds))
    return power * next(m for m in (1, 2, 5, 10) if m * power >= 0.999 * seconds)


def _time(seconds: float) -> str:
    """A time with its unit, without zeros that say nothing."""
    if seconds == 0:
        return "0"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _svg(parts: Sequence[str], height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{"".join(parts)}</svg>'

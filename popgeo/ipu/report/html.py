"""A report as one page that needs nothing but a browser."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from popgeo.ipu.cost.plan import Activity
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.insights import Insight, insights
from popgeo.ipu.report.rows import block_names
from popgeo.ipu.report.tables import COLUMNS
from popgeo.ipu.report.text import quantity
from popgeo.ipu.report.trust import footer
from popgeo.ipu.step_cost import BESIDE

PARTS = Path(__file__).with_name("page")
SCRIPTS = ("base", "tables", "canvas", "timeline", "memory", "flame")  # in the order in which they run
SECTIONS = ("totals", "insights", "time", "flame view", "memory", "tables", "trust")


def page(report: Figures, title: str = "") -> str:
    """The whole page; it opens offline, and from anywhere.

    Args:
        report: What to show.
        title: What it is called.
    """
    sections = {s: part for s, part in zip(SECTIONS, _parts(report), strict=True) if part}
    data = json.dumps(_data(report), allow_nan=False).replace("<", "\\u003c")
    scripts = f'<script type="application/json" id="report">{data}</script>\n<script>\n{script()}</script>\n'
    return shell(title or f"One step on {report.target.name}", _machine(report), sections, scripts)


def shell(title: str, about: str, sections: Mapping[str, str], scripts: str = "") -> str:
    """A whole page in the one look of all of them.

    Args:
        title: What it is called.
        about: What stands below that, in HTML.
        sections: Each part with its name, whose first word is its id; all but the title as HTML.
        scripts: What comes last.
    """
    nav = "".join(f'<a href="#{_anchor(s)}">{s}</a>' for s in sections)
    style = (PARTS / "page.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n{about}\n<nav>{nav}</nav>\n"
        + "\n".join(sections.values())
        + f'\n</main>\n<div id="tip"></div>\n{scripts}</body>\n</html>\n'
    )


def script() -> str:
    """All that the page does, as one script."""
    return "\n".join((PARTS / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)


def summary(report: Figures) -> str:
    """What a notebook shows of a report: the families of operations, and what stands out."""
    rows = [row for row in report.rows.families if row["cycles"] and row["family"] != "host"]
    table = pd.DataFrame(rows, columns=["family", "ops", "cycles", "share", "compute", "exchange", "sync", "validated"])
    shown = dict.fromkeys(("share", "validated"), "{:.1%}".format) | dict.fromkeys(
        ("cycles", "compute", "exchange", "sync"), "{:,.0f}".format
    )
    speed = f", {report.graphs_per_second:,.0f} graphs/s" if report.graphs_per_second else ""
    items = "".join(f"<li><b>{escape(i.title)}</b>: {escape(i.text)} {escape(i.remedy)}</li>" for i in insights(report))
    return (
        f"<p><b>{escape(report.target.name)}: {report.total_cycles:,} cycles, {report.microseconds:,.1f} µs{speed}</b> "
        f"({report.profile.value})</p>{table.to_html(index=False, formatters=shown, border=0)}<ul>{items}</ul>"
    )


def _parts(report: Figures) -> list[str]:
    """What the page shows, in the order of `SECTIONS`; empty where there is nothing to show."""
    return [
        _totals(report),
        insights_section(insights(report)),
        _TIME,
        _FLAME,
        _memory(report),
        _TABLES,
        _trust(report),
    ]


def _data(report: Figures) -> dict[str, Any]:
    """What the page draws."""
    steps = report.rows.supersteps
    blocks = block_names([step["module"] for step in steps])
    data = {
        "clock": report.target.clock,
        "ops": report.rows.ops,
        "supersteps": [{**step, "block": block} for step, block in zip(steps, blocks, strict=True)],
        "families": report.rows.families,
        "modules": report.rows.modules,
        "about": {table: {column.name: column.about for column in columns} for table, columns in COLUMNS.items()},
        "memory": None,
    }
    if (use := report.memory) is not None:
        data["memory"] = {
            "limit": use.limit,
            "categories": {name: held.tolist() for name, held in use.categories.items()},
            "most": {name: int(held.max(initial=0)) for name, held in use.categories.items()},
            "peak": use.peak.tolist(),
            "curve": use.curve.tolist(),
            "peak_op": use.peak_op,
            "op_indices": [index for index, cost in enumerate(report.costs) if cost.phase not in BESIDE],
        }
    return _rounded(data)


def _rounded(part: Any) -> Any:
    """Numbers with as many digits as anybody reads."""
    if isinstance(part, float):
        return round(part, 4)
    if isinstance(part, Mapping):
        return {key: _rounded(value) for key, value in part.items()}
    return [_rounded(item) for item in part] if isinstance(part, list | tuple) else part


def _machine(report: Figures) -> str:
    target = report.target
    micro = "one micro-batch" if report.micro_batches == 1 else f"{report.micro_batches} micro-batches"
    return (
        f'<p class="soft">{escape(report.machines)}: {target.num_tiles:,} tiles of '
        f"{target.memory_per_tile // 1024} KiB "
        f"at {target.clock / 1e9:g} GHz. A step is {micro}. Cycles are {report.profile.value}, a model's and not "
        "measured here.</p>"
    )


def _totals(report: Figures) -> str:
    shares = report.cycles_by_activity
    total = max(report.total_cycles, 1)
    ops = report.rows.ops
    cards = [
        (f"{report.total_cycles:,}", "cycles of a step"),
        (f"{report.microseconds:,.1f} µs", f"at {report.target.clock / 1e9:g} GHz"),
        *([(f"{report.graphs_per_second:,.0f}", "graphs per second")] if report.graphs_per_second else []),
        (f"{quantity(report.total.flops)}FLOP", "arithmetic"),
        (f"{quantity(sum(op['traffic'] for op in ops))}B", "between tiles"),
        (f"{shares[Activity.HOST]:,.0f}", "cycles of the host"),
    ]
    if report.memory is not None:
        cards.append((f"{report.memory.peak.max() / report.memory.limit:.0%}", "of a tile's memory"))
    on_device = [activity for activity in Activity if activity is not Activity.HOST]
    bar = "".join(
        f'<div style="flex:{shares[a]:.0f};background:var(--{a.value})"></div>' for a in on_device if shares[a]
    )
    key = "".join(
        f'<span><i style="background:var(--{a.value})"></i>{a.value} {shares[a] / total:.1%}</span>' for a in on_device
    )
    boxes = "".join(f'<div class="card"><b>{value}</b><span>{label}</span></div>' for value, label in cards)
    return (
        f'<section id="totals"><h2>Totals</h2><div class="cards">{boxes}</div><div class="bar">{bar}</div>'
        f'<div class="key">{key}</div></section>'
    )


def insights_section(found: Sequence[Insight], of: str = "the cycles") -> str:
    """What stands out, each with its remedy."""
    items = "".join(_insight(insight, of) for insight in found)
    return f'<section id="insights"><h2>What stands out</h2>{items or "<p>Nothing.</p>"}</section>'


def _insight(insight: Insight, of: str) -> str:
    share = f"{insight.share:.1%} of {of}" if insight.share else ""
    return (
        f'<div class="insight{" fatal" if insight.fatal else ""}"><b>{escape(insight.title)}</b> '
        f'<span class="share">{share}</span><p>{escape(insight.text)}</p>'
        f'<p class="do">{escape(insight.remedy)}</p></div>'
    )


def _memory(report: Figures) -> str:
    if (use := report.memory) is None:
        return ""
    largest = "".join(
        f"<tr><td class='words'>{escape(item.name)}</td><td>{item.nbytes:,}</td>"
        f"<td class='words'>{escape(item.source)}</td></tr>"
        for item in use.largest
    )
    return (
        '<section id="memory"><h2>Memory by tile</h2><canvas id="tiles"></canvas>'
        '<div class="key" id="memory-key"></div><h2 style="margin-top:18px">The fullest tile while each operation '
        f'runs</h2><canvas id="liveness"></canvas><h2 style="margin-top:18px">What lies on tile {use.peak_tile} at '
        f'the peak, {int(use.peak.max(initial=0)):,} of {use.limit:,} B</h2><div class="scroll"><table><thead><tr>'
        "<th class='words'>value</th><th>bytes</th><th class='words'>line of the model</th></tr></thead>"
        f"<tbody>{largest}</tbody></table></div></section>"
    )


def _trust(report: Figures) -> str:
    runs = f"{escape(report.how_it_runs)}, " if report.how_it_runs else ""
    update = {None: "", True: "The update runs as a captured graph. ", False: "The update is run by torch itself. "}
    return (
        f'<section id="trust"><h2>How far to trust this</h2><p>{"<br>".join(map(escape, footer(report)))}</p>'
        f'<p class="soft">{update[report.update_captured]}On this computer, which says nothing about an IPU: compiled '
        f"in {report.compile_seconds:.2f} s, {runs}{report.calls} calls of {1e3 * report.seconds_per_call:.2f} ms, "
        f"{quantity(report.state_bytes)}B of weights and optimizer state, {quantity(report.buffer_bytes)}B of "
        "buffers.</p></section>"
    )


def _anchor(section: str) -> str:
    return section.split()[0]


_TIME = (
    '<section id="time"><h2>Supersteps over time</h2><div class="tools"><button id="closer">closer</button>'
    '<button id="wider">wider</button><button id="whole">whole step</button><span class="soft">wheel to zoom, drag '
    "to move, double click for the whole; one micro-batch and its update</span></div>"
    '<canvas id="timeline"></canvas></section>'
)
_FLAME = (
    '<section id="flame"><h2>Cycles by module</h2><p class="soft">Forward and backward '
    'together; click a module to look into it.</p><div id="flame-view"></div><div class="key" id="flame-key" '
    'style="margin-top:8px"></div></section>'
)
_TABLES = (
    '<section id="tables"><h2>Tables</h2><p class="soft">Click a heading to sort; click an operation for its plan.</p>'
    '<div class="tools" id="which"></div><div id="table"></div><div id="plan"></div></section>'
)

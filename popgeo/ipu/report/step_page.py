"""The page of a step on one IPU: what it draws is worked out here, its scripts draw it."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from popgeo.ipu.cost.plan import Activity
from popgeo.ipu.report.account import Account
from popgeo.ipu.report.cost_rows import block_names
from popgeo.ipu.report.html_page import PARTS, insights_section, shell, table, totals
from popgeo.ipu.report.tables import COLUMNS, TableColumn
from popgeo.ipu.report.text import footer
from popgeo.ipu.step_cost import BESIDE
from popgeo.quantity import quantity

_RESIDENTS = [
    TableColumn(name="value", unit="", about="what lies there"),
    TableColumn(name="bytes", unit="bytes", about="that it takes on this tile"),
    TableColumn(name="line of the model", unit="", about="that made it"),
]
SCRIPTS = ("base", "tables", "canvas", "timeline", "memory", "flame")  # in the order in which they run


def page(report: Account, title: str = "") -> str:
    """The whole page; it opens offline, and from anywhere.

    Args:
        report: What to show.
        title: What it is called.
    """
    sections = {
        "totals": _totals(report),
        "insights": insights_section(report.insights),
        "time": _TIME,
        "flame view": _FLAME,
        "memory": _memory(report),
        "tables": _TABLES,
        "trust": _trust(report),
    }
    data = json.dumps(_data(report), allow_nan=False)
    return shell(title or f"One step on {report.target.name}", _machine(report), sections, data, script())


def script() -> str:
    """All that the page does, as one script."""
    return "\n".join((PARTS / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)


def _data(report: Account) -> dict[str, Any]:
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
    if (use := report.tile_memory) is not None:
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
    """Numbers with few digits."""
    if isinstance(part, float):
        return round(part, 4)
    if isinstance(part, Mapping):
        return {key: _rounded(value) for key, value in part.items()}
    return [_rounded(item) for item in part] if isinstance(part, list | tuple) else part


def _machine(report: Account) -> str:
    target = report.target
    micro = "one micro-batch" if report.micro_batches == 1 else f"{report.micro_batches} micro-batches"
    return (
        f'<p class="soft">{escape(report.machines)}: {target.num_tiles:,} tiles of '
        f"{quantity(target.memory_per_tile, 'B')} at {target.clock / 1e9:g} GHz. A step is {micro}. "
        f"Cycles are {report.profile.value}, a model's and not measured here.</p>"
    )


def _totals(report: Account) -> str:
    cycles = report.cycles_by_activity
    cards = [
        (f"{report.total_cycles:,}", "cycles of a step"),
        (f"{report.microseconds:,.1f} µs", f"at {report.target.clock / 1e9:g} GHz"),
        *([(f"{report.graphs_per_second:,.0f}", "graphs per second")] if report.graphs_per_second else []),
        (quantity(report.total.flops, "FLOP"), "arithmetic"),
        (quantity(sum(op["traffic"] for op in report.rows.ops), "B"), "between tiles"),
        (f"{cycles[Activity.HOST]:,.0f}", "cycles of the host"),
    ]
    if (use := report.tile_memory) is not None:
        cards.append((f"{use.peak.max() / use.limit:.0%}", "of a tile's memory"))
    on_device = [activity for activity in Activity if activity is not Activity.HOST]
    return totals(cards, {a.value: cycles[a] for a in on_device}, {a.value: a.value for a in on_device})


def _memory(report: Account) -> str:
    if (use := report.tile_memory) is None:
        return ""
    largest = [{"value": item.name, "bytes": item.nbytes, "line of the model": item.source} for item in use.largest]
    return (
        '<section id="memory"><h2>Memory by tile</h2><canvas id="tiles"></canvas>'
        '<div class="key" id="memory-key"></div><h2 style="margin-top:18px">The fullest tile while each operation '
        f'runs</h2><canvas id="liveness"></canvas><h2 style="margin-top:18px">What lies on tile {use.peak_tile} at '
        f"the peak, {int(use.peak.max(initial=0)):,} of {use.limit:,} B</h2>{table(_RESIDENTS, largest)}</section>"
    )


def _trust(report: Account) -> str:
    runs = f"{escape(report.how_it_runs)}, " if report.how_it_runs else ""
    update = {None: "", True: "The update runs as a captured graph. ", False: "The update is run by torch itself. "}
    return (
        f'<section id="trust"><h2>How far to trust this</h2><p>{"<br>".join(map(escape, footer(report)))}</p>'
        f'<p class="soft">{update[report.update_captured]}On this computer, which says nothing about an IPU: compiled '
        f"in {report.compile_seconds:.2f} s, {runs}{report.calls} calls of {1e3 * report.seconds_per_call:.2f} ms, "
        f"{quantity(report.state_bytes, 'B')} of weights and optimizer state, {quantity(report.buffer_bytes, 'B')} of "
        "buffers.</p></section>"
    )


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

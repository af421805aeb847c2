"""The HTML pages of the two reports; scripts draw the plots of a step on one IPU."""

from collections.abc import Collection, Iterable, Mapping
from html import escape
from typing import Any

from popgeo.ipu.cost.plan import Activity
from popgeo.ipu.report.cost_rows import Row, block_names
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.html_page import bars, insights_section, key, markup, section, shell, table, totals
from popgeo.ipu.report.pipeline_figures import PipelineFigures
from popgeo.ipu.report.tables import COLUMNS, COLUMNS_OF_STAGES, TableColumn
from popgeo.ipu.report.text import expected_range, footer, headline, pace
from popgeo.ipu.report.timeline import KINDS
from popgeo.ipu.step_cost import BESIDE
from popgeo.quantity import quantity

_RESIDENTS = [
    TableColumn(name="value", unit="", about="the value"),
    TableColumn(name="bytes", unit="bytes", about="its bytes on this tile"),
    TableColumn(name="line of the model", unit="", about="the line that computes it"),
]
# The scripts of the pages, in order.
SCRIPTS = ("base", "tables", "canvas", "timeline", "supersteps", "memory", "flame")
SCRIPTS_OF_STAGES = ("base", "canvas", "timeline", "stages")
MOST_SPANS = 20_000  # of a page; with more spans, the page leaves out the middle of the step


def page(report: Figures, title: str = "") -> str:
    """Return the page of a step on one IPU. It opens offline and from any folder.

    Args:
        report: Report to show.
        title: Title of the page. Default: the target's name.
    """
    about = "One micro-batch and its update."
    sections = {
        "totals": _totals(report),
        "insights": insights_section(report.insights),
        "time": markup("timeline.html", heading="Supersteps over time", about=about, key=""),
        "flame view": markup("flame.html"),
        "memory": _memory(report),
        "tables": markup("tables.html"),
        "trust": _trust(report),
    }
    return shell(title or f"One step on {report.target.name}", _machine(report), sections, _data(report), SCRIPTS)


def _data(report: Figures) -> dict[str, Any]:
    """Return the data that the page draws."""
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
    """Round all numbers to four digits after the point."""
    if isinstance(part, float):
        return round(part, 4)
    if isinstance(part, Mapping):
        return {key: _rounded(value) for key, value in part.items()}
    return [_rounded(item) for item in part] if isinstance(part, list | tuple) else part


def _machine(report: Figures) -> str:
    micro = "one micro-batch" if report.micro_batches == 1 else f"{report.micro_batches} micro-batches"
    return _about(
        f"{report.machines}: {report.target.sizes}. A step is {micro}. Cycles are {report.profile.value} and come "
        "from a model; they are not measured here."
    )


def _about(words: str) -> str:
    return f'<p class="soft">{escape(words)}</p>'


def _totals(report: Figures) -> str:
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


def _memory(report: Figures) -> str:
    if (use := report.tile_memory) is None:
        return ""
    largest = [{"value": item.name, "bytes": item.nbytes, "line of the model": item.source} for item in use.largest]
    peak = f"{int(use.peak.max(initial=0)):,}"
    residents = table(_RESIDENTS, largest)
    return markup("memory.html", tile=use.peak_tile, peak=peak, limit=f"{use.limit:,}", residents=residents)


def _trust(report: Figures) -> str:
    update = {None: "", True: "The update runs as a captured graph.", False: "The update is run by torch itself."}
    return markup(
        "trust.html",
        words="<br>".join(map(escape, footer(report))),
        update=update[report.update_captured],
        seconds=f"{report.compile_seconds:.2f}",
        runs=f"{escape(report.how_it_runs)}, " if report.how_it_runs else "",
        calls=f"{report.calls} calls of {1e3 * report.seconds_per_call:.2f} ms",
        state=quantity(report.state_bytes, "B"),
        buffers=quantity(report.buffer_bytes, "B"),
    )


MEMORY = ("weights", "optimizer", "stashes", "working")


def page_of_stages(plan: PipelineFigures, title: str = "") -> str:
    """Return the page of a step in stages. It opens offline and from any folder.

    Args:
        plan: Plan to show.
        title: Title of the page. Default: the number of IPUs and the target's name.
    """
    ipus = plan.table_of_ipus
    kinds = [kind for kind in KINDS if any(of[kind] for of in ipus)]
    numbers = "Each number is a micro-batch; point at one to see its cycles."
    spans = plan.spans
    if len(spans) > MOST_SPANS:
        spans = tuple(span for span in spans if any(span.end > a and span.start < b for a, b in plan.windows))
        numbers += " The repetitions in the middle of the step are left out."
    cycles = bars(ipus, KINDS, plan.cycles) + key(_words(kinds))
    memory = bars(ipus, MEMORY, 1.0, limit=True) + key(_words(MEMORY))
    stages = table(COLUMNS_OF_STAGES["stages"], plan.table_of_stages)
    sections = {
        "totals": _totals_of_stages(plan, ipus, kinds),
        "insights": insights_section(plan.insights, "the step"),
        "time": markup("timeline.html", heading="Timeline", about=numbers, key=key(_words(kinds))),
        "cycles by IPU": section("cycles", "Cycles by IPU", cycles),
        "memory by IPU": section("memory", "Memory of the fullest tile, by IPU", memory),
        "stages": section("stages", "Stages", stages, _of_stages(plan)),
        "trust": markup("trust_of_stages.html", expected=escape(expected_range(plan))),
    }
    heading = title or f"A pipeline on {plan.num_ipus * plan.replicas} x {plan.target.name}"
    about = _about(
        f"{headline(plan)}: each with {plan.target.sizes}. All figures come from a model and are not measured here."
    )
    ends = {"end": plan.cycles, "first": plan.windows[0][1], "num_ipus": plan.num_ipus}
    data = {"clock": plan.target.clock, **ends, "spans": _rounded([vars(span) for span in spans])}
    return shell(heading, about, sections, data, SCRIPTS_OF_STAGES)


def _totals_of_stages(plan: PipelineFigures, ipus: Iterable[Row], kinds: Collection[str]) -> str:
    cards = [
        (f"{plan.cycles:,.0f}", "cycles of a step"),
        (f"{1e3 * plan.seconds:,.3f} ms", f"at {plan.target.clock / 1e9:g} GHz"),
        (f"{plan.micro_batches_per_second:,.1f}", "micro-batches per second"),
        (f"{plan.bubble:.1%}", "of the time IPUs wait"),
        (f"IPU {plan.bottleneck}", pace(plan).partition(" ")[2].partition(" ")[2]),
        (f"{1e3 * plan.host_seconds:,.3f} ms", "more per step for the host's call"),
        (f"{max(plan.memory):.0%}", "of the fullest tile's memory"),
    ]
    return totals(cards, {kind: sum(of[kind] for of in ipus) for kind in KINDS}, _words(kinds))


def _of_stages(plan: PipelineFigures) -> str:
    """Return the text above the table of stages."""
    shared = f" {', '.join(plan.shared[:3])} is on several IPUs." if plan.shared else ""
    return (
        f"Cycles are for one micro-batch.{shared} {quantity(sum(s.weight_bytes for s in plan.stages), 'B')} of "
        f"weights, {quantity(sum(plan.extra_bytes), 'B')} of gradients and optimizer state."
    )


def _words(names: Collection[str]) -> dict[str, str]:
    """Return the headings of some columns of the table of IPUs."""
    return {column.name: column.heading or column.name for column in COLUMNS_OF_STAGES["ipus"] if column.name in names}

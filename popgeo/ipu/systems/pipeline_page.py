"""A pipeline as one page that needs nothing but a browser, and as what a notebook shows."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from popgeo.ipu.report.html import insights_section, shell
from popgeo.ipu.report.insights import Insight
from popgeo.ipu.report.text import quantity
from popgeo.ipu.systems.pipeline_figures import PipelineFigures
from popgeo.ipu.systems.pipeline_picture import bars, left_out, timeline
from popgeo.ipu.systems.pipeline_spans import KINDS
from popgeo.ipu.systems.pipeline_tables import COLUMNS, ipus_of, stages_of
from popgeo.ipu.systems.pipeline_text import headline, pace

HEADINGS = {
    "ipu": "IPU",
    "received_bytes": "received",
    "weight_bytes": "weights",
    "stash_bytes": "stash",
    "in_flight": "in flight",
}
MEMORY = ("weights", "optimizer", "stashes", "working")
WORDS = {
    "receive": "receive from other IPUs",
    "host": "wait for the host",
    "streaming": "wait for streaming memory",
    "wait": "wait for other IPUs",
    "optimizer": "gradients and optimizer state",
    "stashes": "activations kept for the backward pass",
    "working": "values of one micro-batch, code, uneven tiles",
}


def page(plan: PipelineFigures, found: Sequence[Insight], title: str = "") -> str:
    """The whole page; it opens offline, and from anywhere.

    Args:
        plan: What to show.
        found: What stands out.
        title: What it is called.
    """
    ipus = ipus_of(plan)
    sections = {
        "totals": _totals(plan, ipus),
        "insights": insights_section(found, "the step saved"),
        "timeline": _timeline(plan, ipus),
        "cycles by IPU": _cycles(plan, ipus),
        "memory by IPU": _memory(ipus),
        "stages": _stages(plan),
        "trust": _TRUST,
    }
    return shell(
        title or f"A pipeline on {plan.num_ipus * plan.replicas} x {plan.target.name}", _machine(plan), sections
    )


def summary(plan: PipelineFigures, found: Sequence[Insight]) -> str:
    """What a notebook shows of a plan: its figures, its stages, and what stands out."""
    items = "".join(f"<li><b>{escape(i.title)}</b>: {escape(i.text)} {escape(i.remedy)}</li>" for i in found)
    return (
        f"<p><b>{escape(headline(plan))}: {plan.cycles:,.0f} cycles, {1e3 * plan.seconds:,.3f} ms, "
        f"{plan.micro_batches_per_second:,.1f} micro-batches/s</b>; IPUs wait {plan.bubble:.1%} of the time</p>"
        f"{_table(stages_of(plan))}<ul>{items}</ul>"
    )


def _machine(plan: PipelineFigures) -> str:
    target = plan.target
    return (
        f'<p class="soft">{escape(headline(plan))}: each with {target.num_tiles:,} tiles of '
        f"{target.memory_per_tile // 1024} KiB at {target.clock / 1e9:g} GHz. All figures are modelled, "
        "none is measured here.</p>"
    )


def _totals(plan: PipelineFigures, ipus: Sequence[Mapping[str, Any]]) -> str:
    cards = [
        (f"{plan.cycles:,.0f}", "cycles of a step"),
        (f"{1e3 * plan.seconds:,.3f} ms", f"at {plan.target.clock / 1e9:g} GHz"),
        (f"{plan.micro_batches_per_second:,.1f}", "micro-batches per second"),
        (f"{plan.bubble:.1%}", "of the time IPUs wait"),
        (f"IPU {plan.bottleneck}", pace(plan).partition(" ")[2].partition(" ")[2]),
        (f"{1e3 * plan.host_seconds:,.3f} ms", "of the host's call a step, on top"),
        (f"{max(plan.memory):.0%}", "of the fullest tile's memory"),
    ]
    boxes = "".join(f'<div class="card"><b>{value}</b><span>{label}</span></div>' for value, label in cards)
    total = {kind: sum(of[kind] for of in ipus) for kind in KINDS}
    whole = sum(total.values())
    bar = "".join(
        f'<div style="flex:{n / whole:.6f};background:var(--{kind})"></div>' for kind, n in total.items() if n
    )
    shares = {kind: f" {n / whole:.1%}" for kind, n in total.items()}
    return (
        f'<section id="totals"><h2>Totals</h2><div class="cards">{boxes}</div><div class="bar">{bar}</div>'
        f"{_key(_kinds(ipus), shares)}</section>"
    )


def _timeline(plan: PipelineFigures, ipus: Sequence[Mapping[str, Any]]) -> str:
    return (
        '<section id="timeline"><h2>Timeline</h2><p class="soft">Numbers are those of micro-batches; rest the pointer '
        f"on one for its cycles. {escape(left_out(plan))}</p>{timeline(plan)}"
        f'<div style="margin-top:8px">{_key(_kinds(ipus))}</div></section>'
    )


def _kinds(ipus: Sequence[Mapping[str, Any]]) -> list[str]:
    """What IPUs spend any time on."""
    return [kind for kind in KINDS if any(of[kind] for of in ipus)]


def _cycles(plan: PipelineFigures, ipus: Sequence[Mapping[str, Any]]) -> str:
    return (
        f'<section id="cycles"><h2>Cycles by IPU</h2>{bars(ipus, KINDS, plan.cycles)}'
        f'<div style="margin-top:8px">{_key(_kinds(ipus))}</div></section>'
    )


def _memory(ipus: Sequence[Mapping[str, Any]]) -> str:
    return (
        '<section id="memory"><h2>Memory of the fullest tile, by IPU</h2>'
        f'{bars(ipus, MEMORY, 1.0, limit=1.0)}<div style="margin-top:8px">{_key(MEMORY)}</div></section>'
    )


def _stages(plan: PipelineFigures) -> str:
    about = "Cycles are those of one micro-batch."
    if plan.shared:
        about += f" {', '.join(plan.shared[:3])} stands on several IPUs."
    about += (
        f" {quantity(sum(s.weight_bytes for s in plan.stages))}B of weights, {quantity(sum(plan.extra_bytes))}B of "
        "gradients and optimizer state."
    )
    return (
        f'<section id="stages"><h2>Stages</h2><p class="soft">{escape(about)}</p><div class="scroll">'
        f"{_table(stages_of(plan))}</div></section>"
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Stages as a table with the units of their columns."""
    columns = COLUMNS["stages"]
    head = "".join(
        f'<th{_words(name)} title="{escape(about)}">{HEADINGS.get(name, name)}</th>'
        for name, (_, about) in columns.items()
    )
    body = "".join(
        "<tr>" + "".join(f"<td{_words(name)}>{_cell(row[name], columns[name][0])}</td>" for name in columns) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _words(column: str) -> str:
    return ' class="words"' if column == "layers" else ""


def _cell(value: Any, unit: str) -> str:
    if unit == "share":
        return f"{value:.0%}"
    if unit == "B":
        return f"{quantity(value)}B"
    return f"{value:,.0f}" if unit == "cycles" else escape(str(value))


def _key(names: Sequence[str], more: Mapping[str, str] | None = None) -> str:
    items = (
        f'<span><i style="background:var(--{name})"></i>{WORDS.get(name, name)}{(more or {}).get(name, "")}</span>'
        for name in names
    )
    return f'<div class="key">{"".join(items)}</div>'


_TRUST = (
    '<section id="trust"><h2>How far to trust this</h2><p>Cycles of a stage come from the same formulas as every '
    "report's. Whole systems of 16 IPUs were modelled up to twice as fast as they were published: read a plan as which "
    "cut is better, and its throughput as an upper bound.</p></section>"
)

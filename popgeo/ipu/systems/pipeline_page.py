"""The page of a pipeline: its timeline, what each IPU spends cycles and memory on, its stages and what stands out."""

from collections.abc import Iterable, Sequence
from html import escape

from popgeo.ipu.report.cost_rows import Row
from popgeo.ipu.report.html_page import insights_section, key, section, shell, table, totals
from popgeo.ipu.systems.pipeline_figures import PipelineFigures
from popgeo.ipu.systems.pipeline_picture import bars, left_out, timeline
from popgeo.ipu.systems.pipeline_text import headline, pace
from popgeo.ipu.systems.stage_spans import KINDS
from popgeo.ipu.systems.stage_tables import COLUMNS, ipus_of, stages_of
from popgeo.quantity import quantity

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


def page(plan: PipelineFigures, title: str = "") -> str:
    """The whole page; it opens offline, and from anywhere.

    Args:
        plan: What to show.
        title: What it is called.
    """
    ipus = ipus_of(plan)
    kinds = [kind for kind in KINDS if any(of[kind] for of in ipus)]  # on which IPUs spend any time
    about = "Numbers are those of micro-batches; rest the pointer on one for its cycles. " + left_out(plan)
    cycles = bars(ipus, KINDS, plan.cycles) + key(_words(kinds))
    memory = bars(ipus, MEMORY, 1.0, limit=1.0) + key(_words(MEMORY))
    stages = table(COLUMNS["stages"], stages_of(plan), HEADINGS)
    sections = {
        "totals": _totals(plan, ipus, kinds),
        "insights": insights_section(plan.insights, "the step"),
        "timeline": section("timeline", "Timeline", timeline(plan) + key(_words(kinds)), about),
        "cycles by IPU": section("cycles", "Cycles by IPU", cycles),
        "memory by IPU": section("memory", "Memory of the fullest tile, by IPU", memory),
        "stages": section("stages", "Stages", stages, _of_stages(plan)),
        "trust": section("trust", "How far to trust this", f"<p>{_TRUST}</p>"),
    }
    heading = title or f"A pipeline on {plan.num_ipus * plan.replicas} x {plan.target.name}"
    return shell(heading, f'<p class="soft">{escape(_machine(plan))}</p>', sections)


def _machine(plan: PipelineFigures) -> str:
    target = plan.target
    return (
        f"{headline(plan)}: each with {target.num_tiles:,} tiles of {quantity(target.memory_per_tile, 'B')} at "
        f"{target.clock / 1e9:g} GHz. All figures are modelled, none is measured here."
    )


def _totals(plan: PipelineFigures, ipus: Sequence[Row], kinds: Iterable[str]) -> str:
    cards = [
        (f"{plan.cycles:,.0f}", "cycles of a step"),
        (f"{1e3 * plan.seconds:,.3f} ms", f"at {plan.target.clock / 1e9:g} GHz"),
        (f"{plan.micro_batches_per_second:,.1f}", "micro-batches per second"),
        (f"{plan.bubble:.1%}", "of the time IPUs wait"),
        (f"IPU {plan.bottleneck}", pace(plan).partition(" ")[2].partition(" ")[2]),
        (f"{1e3 * plan.host_seconds:,.3f} ms", "of the host's call a step, on top"),
        (f"{max(plan.memory):.0%}", "of the fullest tile's memory"),
    ]
    return totals(cards, {kind: sum(of[kind] for of in ipus) for kind in KINDS}, _words(kinds))


def _of_stages(plan: PipelineFigures) -> str:
    shared = f" {', '.join(plan.shared[:3])} stands on several IPUs." if plan.shared else ""
    return (
        f"Cycles are those of one micro-batch.{shared} {quantity(sum(s.weight_bytes for s in plan.stages), 'B')} of "
        f"weights, {quantity(sum(plan.extra_bytes), 'B')} of gradients and optimizer state."
    )


def _words(names: Iterable[str]) -> dict[str, str]:
    return {name: WORDS.get(name, name) for name in names}


_TRUST = (
    "Cycles of a stage come from the same formulas as every report's. Whole systems of 16 IPUs were modelled up to "
    "twice as fast as they were published: read a plan as which cut is better, and its throughput as an upper bound."
)

"""A pipeline on one screen: its figures, a line for each stage, and what stands out."""

import textwrap
from collections.abc import Iterable, Mapping

from popgeo.ipu.report.text import cut_start, this_computer
from popgeo.ipu.systems.pipeline_figures import PipelineFigures
from popgeo.ipu.systems.stage_tables import stages_of
from popgeo.quantity import quantity

WIDTH = 88  # as wide as a page of the site shows without a fold
OF_OPERATIONS = 3  # insights about operations that fit


def text(plan: PipelineFigures) -> str:
    """The plan in words and columns."""
    here = this_computer(plan) if plan.calls or plan.buffer_bytes else ()
    return "\n".join([*_head(plan), *_stages(plan), *_foot(plan), *_insights(plan), *here])


def headline(plan: PipelineFigures) -> str:
    """What a step is, in one line."""
    several = "es" if plan.micro_batches > 1 else ""
    beside = f" x {plan.replicas} replicas" if plan.replicas > 1 else ""
    again = ", recomputed" if plan.recompute else ""
    if isinstance(plan.recompute, tuple) and plan.recompute:
        again += f" from the results of {len(plan.recompute)} layer{'s' if len(plan.recompute) > 1 else ''}"
    return (
        f"One step of {plan.micro_batches} micro-batch{several}, {plan.schedule.value}{again}, on {plan.num_ipus} x "
        f"{plan.target.name}{beside}"
    )


def _head(plan: PipelineFigures) -> Iterable[str]:
    yield headline(plan)
    host = f" and {1e3 * plan.host_seconds:,.3f} ms of the host's call" if plan.host_seconds else ""
    yield (
        f"  {plan.cycles:,.0f} cycles = {1e3 * plan.seconds:,.3f} ms{host}: {plan.micro_batches_per_second:,.1f} "
        "micro-batches/s"
    )
    yield f"  IPUs wait {plan.bubble:.1%} of the time; {pace(plan)}"


def pace(plan: PipelineFigures) -> str:
    """Which IPU the others wait for, in words."""
    words = f"IPU {plan.bottleneck} works longest"
    if not plan.turns or plan.num_ipus == 1:
        return words
    slowest = sum(turn.ipu == plan.bottleneck for turn in plan.turns)
    return f"{words} and sets the pace of {slowest:,} of {len(plan.turns):,} turns"


def _stages(plan: PipelineFigures) -> Iterable[str]:
    rows = stages_of(plan)
    least = {"forward": 12, "backward": 12, "receive": 10, "other": 9}
    wide = {key: max([width, *(len(f"{row[key]:,.0f}") + 1 for row in rows)]) for key, width in least.items()}
    yield f"{'stage':>5} {'IPU':>3} {'layers':<21}{_cells(wide, {key: key for key in wide})}{'busy':>6}{'memory':>8}"
    for row in rows:
        cycles = _cells(wide, {key: f"{row[key]:,.0f}" for key in wide})
        name = cut_start(row["layers"], 20)
        yield f"{row['stage']:>5} {row['ipu']:>3} {name:<21}{cycles}{row['busy']:>6.0%}{row['memory']:>8.0%}"


def _cells(wide: Mapping[str, int], words: Mapping[str, str]) -> str:
    return "".join(f"{words[key]:>{width}}" for key, width in wide.items())


def _foot(plan: PipelineFigures) -> Iterable[str]:
    weights = quantity(sum(stage.weight_bytes for stage in plan.stages), "B")
    yield f"  {weights} of weights, {quantity(sum(plan.extra_bytes), 'B')} of gradients and optimizer state"
    yield f"  update and sum over replicas {max(plan.update):,.0f} cycles; planned in {plan.seconds_to_plan:.1f} s"


def _insights(plan: PipelineFigures) -> Iterable[str]:
    """All that stands out of the stages, and what costs most among their operations."""
    of_operations = [insight for insight in plan.insights if insight.ops]
    left_out = of_operations[OF_OPERATIONS:]
    shown = [insight for insight in plan.insights if insight not in left_out]
    if shown:
        yield f"what stands out{f' ({len(left_out)} more in .insights)' if left_out else ''}"
    for insight in shown:
        yield from textwrap.wrap(str(insight), WIDTH, initial_indent="  - ", subsequent_indent="    ")

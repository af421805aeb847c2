"""Reports as text for one screen, with notes on the accuracy of the figures.

The text of one IPU has at most 50 lines of at most 100 characters. The text of stages has a line per stage.
"""

import textwrap
from collections.abc import Iterable, Sequence

from popgeo.ipu.cost.plan import Activity, Profile, Validity
from popgeo.ipu.report.cost_rows import Row, shorten_start
from popgeo.ipu.report.figures import IDLE, Figures
from popgeo.ipu.report.pipeline_figures import PipelineFigures
from popgeo.quantity import quantity

WIDTH, WIDTH_OF_STAGES = 100, 88  # a page of the site shows 88 columns without wrapping
FAMILIES, BLOCKS, OPS, INSIGHTS = 7, 6, 5, 4  # rows that fit
OF_OPERATIONS = 3  # insights about operations that a report of stages shows


def text(report: Figures) -> str:
    """Return the report of a step on one IPU as text."""
    lines = [*_head(report)]
    if report.total_cycles:
        lines += _groups("by family", "family", report.rows.families, FAMILIES)
        lines += _groups("by block", "module", report.rows.blocks, BLOCKS)
        lines += _most_expensive(report)
        lines += _insights(report)
        lines += footer(report)
    return "\n".join(part for line in (*lines, *this_computer_lines(report)) for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    """Wrap a line that is too long."""
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 4))


def _head(report: Figures) -> Iterable[str]:
    target = report.target
    step = "step" if report.micro_batches == 1 else f"step of {report.micro_batches} micro-batches"
    update = {None: "", True: ", update captured", False: ", update run by torch itself"}[report.update_captured]
    yield f"One {step} on {report.machines}: {target.num_tiles:,} tiles at {target.clock / 1e9:g} GHz{update}"
    if not report.costs:
        return
    speed = f", {report.graphs_per_second:,.0f} graphs/s" if report.graphs_per_second else ""
    other = Profile.IDEAL if report.profile is Profile.CALIBRATED else Profile.CALIBRATED
    by_other = round(sum(c.count * c.plan.cycles(other) for c in report.costs if c.phase != "host"))
    yield (
        f"  {report.total_cycles:,} cycles = {report.microseconds:,.1f} µs{speed} "
        f"({report.profile.value}; {other.value} {by_other:,})"
    )
    total = max(report.total_cycles, 1)
    shares = report.cycles_by_activity
    ops = report.rows.ops
    host = shares[Activity.HOST]
    yield (
        "  "
        + ", ".join(f"{a.value} {shares[a] / total:.1%}" for a in Activity if a is not Activity.HOST)
        + f"; the host at the same time {host:,.0f} cycles{'' if host <= total else ', which is longer'}"
    )
    if not report.total_cycles:
        return
    use, compute = report.tile_memory, _sum(ops, "compute") or 1
    mean_balance = sum(op["balance"] * op["compute"] for op in ops) / compute
    mean_workers = sum(op["workers"] * op["compute"] for op in ops) / compute
    yield (
        f"  tiles in balance {mean_balance:.0%}, {mean_workers:.1f} of {target.workers_per_tile} workers busy, "
        f"{quantity(sum(op['traffic'] for op in ops), 'B')} between tiles, "
        f"{quantity(report.total.flops, 'FLOP')}"
        + ("" if use is None else f", memory {use.peak.max(initial=0) / use.limit:.0%}")
    )


def _groups(title: str, key: str, rows: Sequence[Row], limit: int) -> Iterable[str]:
    rows = [row for row in rows if row["cycles"] and row[key] != "host"]
    width = max([12, *(len(f"{row['cycles']:,.0f}") + 1 for row in rows)])
    yield (
        f"{title:<22}{'ops':>6}{'cycles':>{width}}{'share':>8}{'compute':>9}{'exchange':>9}{'balance':>9}{'validated':>11}"
    )
    for row in rows[:limit]:
        cycles = max(row["cycles"], 1e-9)
        yield (
            f"  {shorten_start(row[key], 19):<20}{row['ops']:>6}{row['cycles']:>{width},.0f}{row['share']:>8.1%}"
            f"{row['compute'] / cycles:>9.0%}{row['exchange'] / cycles:>9.0%}{row['balance']:>9.0%}"
            f"{row['validated']:>11.0%}"
        )
    if rest := rows[limit:]:
        yield (
            f"  {f'and {len(rest)} more':<20}{sum(r['ops'] for r in rest):>6}"
            f"{sum(r['cycles'] for r in rest):>{width},.0f}{sum(r['share'] for r in rest):>8.1%}"
        )


def _most_expensive(report: Figures) -> Iterable[str]:
    equal: dict[tuple[str, ...], list[Row]] = {}
    for op in report.rows.ops:
        if op["phase"] != "host":
            equal.setdefault((op["op"], op["shapes"], op["phase"], op["split"]), []).append(op)
    yield "most expensive operations (equal ones together)"
    for (name, shapes, phase, split), ops in sorted(equal.items(), key=lambda item: -_sum(item[1], "cycles"))[:OPS]:
        times = sum(op["count"] for op in ops)
        what = f"{times} x {name} {shapes.replace(', ', ',')}, {phase}{'; ' + split if split else ''}"
        yield f"  {_sum(ops, 'cycles'):>10,.0f}  {_sum(ops, 'share'):>5.1%}  {what}"


def _sum(rows: Iterable[Row], key: str) -> float:
    return sum(row[key] for row in rows)


def _insights(report: Figures) -> Iterable[str]:
    found = report.insights
    shares = [f" ({insight.share:.0%})" if insight.share else "" for insight in found]
    lines = [f"  - {one.title}{share}: {one.remedy}" for one, share in zip(found, shares, strict=True)]
    return _with_heading(lines[:INSIGHTS], len(lines) - INSIGHTS)


def _with_heading(lines: Sequence[str], left_out: int) -> Iterable[str]:
    if lines:
        yield f"insights{f' ({left_out} more in .insights)' if left_out > 0 else ''}"
    yield from lines


def this_computer_lines(report: Figures) -> Iterable[str]:
    """Yield lines about the run on this computer, which say nothing about an IPU."""
    kept = sum(cost.phase in ("forward", "backward") and cost.family not in IDLE for cost in report.costs)
    ran = f"ran {report.calls} calls, {1e3 * report.seconds_per_call:.2f} ms each" if report.calls else "not run yet"
    yield (
        f"this computer (not IPU time): {kept} operations of {report.captured_ops} captured, "
        f"compiled in {report.compile_seconds:.2f} s"
    )
    yield f"  {ran}{f'; {report.how_it_runs}' if report.how_it_runs else ''}"
    kinds = sorted(report.families.items(), key=lambda item: -item[1].bytes)
    runs = "; a step runs " + ", ".join(f"{family.ops:,} {name}" for name, family in kinds) if kinds else ""
    yield f"  {quantity(report.state_bytes, 'B')} of state, {quantity(report.buffer_bytes, 'B')} of buffers{runs}"


def text_of_stages(plan: PipelineFigures) -> str:
    """Return the report of a pipeline as text."""
    here = this_computer_lines(plan) if plan.calls or plan.buffer_bytes else ()
    return "\n".join([*_head_of_stages(plan), *_stages(plan), *_foot(plan), *_insights_of_stages(plan), *here])


def headline(plan: PipelineFigures) -> str:
    """Return a one-line summary of a step."""
    several = "es" if plan.micro_batches > 1 else ""
    replicas = f" x {plan.replicas} replicas" if plan.replicas > 1 else ""
    again = ", recomputed" if plan.recompute else ""
    if isinstance(plan.recompute, tuple) and plan.recompute:
        again += f" from the results of {len(plan.recompute)} layer{'s' if len(plan.recompute) > 1 else ''}"
    return (
        f"One step of {plan.micro_batches} micro-batch{several}, {plan.schedule.value}{again}, on {plan.num_ipus} x "
        f"{plan.target.name}{replicas}"
    )


def _head_of_stages(plan: PipelineFigures) -> Iterable[str]:
    yield headline(plan)
    host = f" and {1e3 * plan.host_seconds:,.3f} ms of the host's call" if plan.host_seconds else ""
    yield (
        f"  {plan.cycles:,.0f} cycles = {1e3 * plan.seconds:,.3f} ms{host}: {plan.micro_batches_per_second:,.1f} "
        "micro-batches/s"
    )
    yield f"  IPUs wait {plan.bubble:.1%} of the time; {pace(plan)}"


def pace(plan: PipelineFigures) -> str:
    """Return a text about the slowest IPU, because the other IPUs wait for it."""
    words = f"IPU {plan.bottleneck} works longest"
    if not plan.turns or plan.num_ipus == 1:
        return words
    slowest = sum(turn.ipu == plan.bottleneck for turn in plan.turns)
    return f"{words} and sets the pace of {slowest:,} of {len(plan.turns):,} turns"


def _stages(plan: PipelineFigures) -> Iterable[str]:
    rows = plan.table_of_stages
    least = {"forward": 12, "backward": 12, "receive": 10, "other": 9}
    wide = {key: max([width, *(len(f"{row[key]:,.0f}") + 1 for row in rows)]) for key, width in least.items()}
    heads = "".join(f"{key:>{width}}" for key, width in wide.items())
    yield f"{'stage':>5} {'IPU':>3} {'layers':<21}{heads}{'busy':>6}{'memory':>8}"
    for row in rows:
        cycles = "".join(f"{row[key]:>{width},.0f}" for key, width in wide.items())
        name = shorten_start(row["layers"], 20)
        yield f"{row['stage']:>5} {row['ipu']:>3} {name:<21}{cycles}{row['busy']:>6.0%}{row['memory']:>8.0%}"


def _foot(plan: PipelineFigures) -> Iterable[str]:
    weights = quantity(sum(stage.weight_bytes for stage in plan.stages), "B")
    yield f"  {weights} of weights, {quantity(sum(plan.extra_bytes), 'B')} of gradients and optimizer state"
    yield f"  update and sum over replicas {max(plan.update):,.0f} cycles; planned in {plan.seconds_to_plan:.1f} s"
    yield f"  trust: {plan.error_budget.validated:.0%} of the cycles validated"
    yield expected_range(plan)


def _insights_of_stages(plan: PipelineFigures) -> Iterable[str]:
    """Yield all insights about stages, and the most expensive insights about their operations."""
    left_out = [insight for insight in plan.insights if insight.ops][OF_OPERATIONS:]
    lines = list[str]()
    for insight in plan.insights:
        if insight not in left_out:
            lines += textwrap.wrap(str(insight), WIDTH_OF_STAGES, initial_indent="  - ", subsequent_indent="    ")
    return _with_heading(lines, len(left_out))


# Upper limits of the median error of calibrated cycles, on published measurements to which no constant was fitted.
# benchmarks/cost_model_validation.py checks them. The only measured scatter is scatter-add, and the only measured fused
# operation is the convolution in an interaction block of SchNet.
ERROR_BANDS = {"gather": 0.07, "scatter": 0.05, "matmul": 0.08}  # by family
ERROR_BANDS_OF_OPERATIONS = {"cfconv": 0.06}


def footer(report: Figures) -> list[str]:
    """Return lines about the trust in the figures, with the errors found on measurements."""
    budget, ops = report.error_budget, report.rows.ops
    unknown = sum(op["share"] for op in ops if not op["known"])
    measured = [op for op in ops if op["trust"] != Validity.ESTIMATE.value]
    found = {op["family"] for op in measured} | {op["op"] for op in measured}
    bands = [f"{n} {error:.0%}" for n, error in (ERROR_BANDS | ERROR_BANDS_OF_OPERATIONS).items() if n in found]
    lines = [
        f"trust: {budget.validated:.0%} of the cycles validated, {budget.extrapolated:.0%} at "
        f"sizes beyond, {budget.estimates:.0%} estimates, of them {unknown:.0%} without a rule",
        expected_range(report),
    ]
    if bands:
        lines.append(f"  median error on published Bow IPU figures at most: {', '.join(bands)}")
    return lines


def expected_range(report: Figures) -> str:
    """Return the expected range of a machine's time as text."""
    return f"  a machine is expected to take {report.error_budget} of this total, in four of five cases"

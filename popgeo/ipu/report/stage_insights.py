"""The insights about a pipeline, each with a remedy that was planned first."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from popgeo.ipu.report.better_plans import best_move, plan_that_fits
from popgeo.ipu.report.insights import Insight, insight_of, sorted_insights
from popgeo.ipu.report.pipeline_figures import PipelineFigures
from popgeo.ipu.stage_choices import Schedule

GOOD_BUBBLE = 0.05  # share of the time that IPUs may wait without an insight
UNEVEN = 1.1  # time of the slowest stage over the mean; up to this ratio there is no insight
NOTABLE = 0.03  # share of the time that the host may take without an insight
WORTH_IT = 0.01  # share of the step that a remedy has to save
MOST_TASKS = 30_000  # passes of the longest timeline that is computed for a remedy


def stage_insights(plan: PipelineFigures) -> tuple[Insight, ...]:
    """Return all insights about stages: first fatal insights, then the largest saving."""
    return sorted_insights(insight for rule in RULES for insight in rule(plan))


def memory_exceeds_an_ipu(plan: PipelineFigures) -> Iterator[Insight]:
    """Report an IPU that needs more memory than it has."""
    if plan.fits:
        return
    over = max(range(plan.num_ipus), key=lambda ipu: plan.memory[ipu])
    number, found = sum(share > 1 for share in plan.memory), plan_that_fits(plan)
    about = dict[str, Any](ipu=over, needs=plan.memory[over], number=number, num_ipus=plan.num_ipus)
    if found is None:
        least, layers = math.ceil(sum(plan.memory)), sum(map(len, plan.layers))
        yield insight_of("more_stages_are_not_enough", fatal=True, **about, least=least, layers=layers)
        return
    how = f"{found.words}: {max(found.plan.memory):.0%} of the fullest tile, {_instead(plan, found.plan)}."
    yield insight_of("memory_exceeds_an_ipu", fatal=True, change=found.change, **about, how=how)


def stages_are_uneven(plan: PipelineFigures) -> Iterator[Insight]:
    """Report a stage that takes longer than the others, which wait for it."""
    work = [stage.forward_pass + stage.backward_pass for stage in plan.stages]
    mean, slowest = sum(work) / len(work), max(range(len(work)), key=work.__getitem__)
    if plan.schedule is Schedule.SHARDED or plan.num_ipus < len(plan.stages) or work[slowest] < UNEVEN * mean:
        return
    change: Mapping[str, Any] = {}
    saved, found = 0.0, best_move(plan, slowest)
    if found is not None and _saved(plan, found.plan) > WORTH_IT:
        saved, change = _saved(plan, found.plan), found.change
        how = f"Move {found.words}: {_instead(plan, found.plan)}."
    elif len(plan.layers[slowest]) == 1:
        how = f"It is one layer, {plan.layers[slowest][0]}: no cut between layers makes the step shorter."
    else:
        how = "No move of one layer to another stage makes the step shorter."
    about = dict[str, Any](stage=slowest, times=work[slowest] / mean, cycles=work[slowest], how=how)
    yield insight_of("stages_are_uneven", saved, change=change, **about)


def pipeline_waits(plan: PipelineFigures) -> Iterator[Insight]:
    """Report a pipeline that spends more time than necessary on filling and draining."""
    in_turn = plan.schedule in (Schedule.SHARDED, Schedule.PHASED) or plan.num_ipus == 1
    if in_turn or plan.bubble <= GOOD_BUBBLE:
        return
    found = _longer(plan)
    if found is None or plan.bubble - found.bubble < 2 * WORTH_IT:
        return
    count = found.micro_batches
    how = f"Accumulate {count:,} micro-batches" if plan.trains else f"Set device_iterations={count:,}"
    then = "" if found.bubble <= GOOD_BUBBLE else "; the rest is mostly waiting for the slowest stage"
    about = dict[str, Any](bubble=plan.bubble, count=plan.micro_batches, stages=len(plan.stages), how=how, then=then)
    about |= {"ends": "updates" if plan.trains else "calls", "limit": math.ceil(100 * found.bubble) / 100}
    yield _advice("pipeline_waits", plan, found, {"micro_batches": count}, by_throughput=True, **about)


def _longer(plan: PipelineFigures) -> PipelineFigures | None:
    """Return a plan with as few micro-batches as a bubble of `GOOD_BUBBLE`, or nearly the least bubble, needs.

    After the first few micro-batches, each takes as long as the one before; two plans measure this time. The result is
    None if the longest timeline that we compute is too short.
    """
    most = MOST_TASKS // (len(plan.stages) * (2 if plan.trains else 1))
    first = max(plan.micro_batches, 2 * len(plan.stages))
    if 2 * first > most:
        return None
    before, later = plan.replan(micro_batches=first), plan.replan(micro_batches=2 * first)
    turn = (later.cycles - before.cycles) / first
    work = (sum(later.busy) - sum(before.busy)) / (plan.num_ipus * first)
    goal = max(GOOD_BUBBLE, 1 - work / turn + 0.02)
    # Solve busy = (1 - goal) x cycles; each further micro-batch adds `work` to busy and `turn` to cycles.
    lacks = (1 - goal) * later.cycles - sum(later.busy) / plan.num_ipus
    more = lacks / (work - (1 - goal) * turn)
    number = min(most, max(plan.micro_batches + 1, math.ceil(2 * first + more)))
    return plan.replan(micro_batches=number)


def one_works_at_a_time(plan: PipelineFigures) -> Iterator[Insight]:
    """Report a sharded model, because one IPU works while the others wait."""
    if plan.schedule is not Schedule.SHARDED or plan.num_ipus == 1 or plan.micro_batches == 1:
        return
    other = plan.replan(schedule=Schedule.LOCK_STEP)
    if _saved(plan, other) >= WORTH_IT and (other.fits or not plan.fits):
        change = {"schedule": Schedule.LOCK_STEP.value}
        yield _advice("one_works_at_a_time", plan, other, change, bubble=plan.bubble)


def host_is_waited_for(plan: PipelineFigures) -> Iterator[Insight]:
    """Report the share of a step that inputs, results and calls of the host take."""
    share = sum(of["host"] for of in plan.cycles_by_kind) / (plan.num_ipus * plan.cycles)
    if share > NOTABLE and _saved(plan, other := plan.replan(overlap_host=True)) > WORTH_IT:
        yield _advice("host_is_waited_for", plan, other, {"overlap_host": True}, host=share)
    calls = plan.host_seconds / (plan.host_seconds + plan.seconds)
    if plan.trains and calls > GOOD_BUBBLE:
        steps = max(2, 2 ** math.ceil(math.log2(calls / (1 - calls) * (1 - GOOD_BUBBLE) / GOOD_BUBBLE)))
        other, each = plan.replan(device_iterations=steps), 1e3 * plan.target.host_call_seconds
        about = dict[str, Any](calls=calls, milliseconds=each, steps=steps)
        yield _advice("host_is_called_often", plan, other, {"device_iterations": steps}, by_throughput=True, **about)


def recomputed_for_nothing(plan: PipelineFigures) -> Iterator[Insight]:
    """Report recomputation in a plan that also fits without recomputation."""
    if plan.recompute and plan.trains and plan.fits:
        other = plan.replan(recompute=False)
        if other.fits and _saved(plan, other) > WORTH_IT:
            yield _advice("recomputed_for_nothing", plan, other, {"recompute": False}, fullest=max(other.memory))


def replicas_do_more(plan: PipelineFigures) -> Iterator[Insight]:
    """Report that fewer stages and more replicas process more samples per second on the same IPUs."""
    if not plan.fits or plan.schedule is Schedule.SHARDED or plan.num_ipus != len(plan.stages):
        return
    best, change = plan, dict[str, Any]()
    samples = plan.micro_batches * plan.replicas
    for stages in range(plan.num_ipus // 2, 0, -1):
        replicas = plan.replicas * plan.num_ipus // stages
        if plan.num_ipus % stages or samples % replicas or sum(plan.memory) / stages > 1.2:
            continue
        choice: dict[str, Any] = {"stages": stages, "replicas": replicas, "micro_batches": samples // replicas}
        other = plan.replan(**choice)
        if not other.fits:
            break
        if other.micro_batches_per_second > best.micro_batches_per_second:
            best, change = other, choice
    if _gained(plan, best) > WORTH_IT:
        number = f"{change['stages']} stage{'s' * (change['stages'] > 1)}"
        about = {**change, "stages": number, "num_ipus": plan.num_ipus * plan.replicas, "fullest": max(best.memory)}
        yield _advice("replicas_do_more", plan, best, change, by_throughput=True, **about)


def weights_are_shared(plan: PipelineFigures) -> Iterator[Insight]:
    """Report a parameter that is stored on several IPUs, such as a tied embedding."""
    if plan.shared:
        nbytes = sum(stage.shared_bytes for stage in plan.stages)
        yield insight_of("weights_are_shared", names=", ".join(plan.shared[:3]), nbytes=nbytes)


def _advice(
    rule: str,
    plan: PipelineFigures,
    other: PipelineFigures,
    change: Mapping[str, Any],
    *,
    by_throughput: bool = False,
    **words: Any,
) -> Insight:
    """Return an insight that recommends another plan, with the cycles or the micro-batches per second that it gains."""
    gives, share = _instead(plan, other), _saved(plan, other)
    if by_throughput:
        before, after = plan.micro_batches_per_second, other.micro_batches_per_second
        gives, share = f"{after:,.1f} micro-batches/s instead of {before:,.1f}", _gained(plan, other)
    return insight_of(rule, share, change=change, gives=gives, **words)


def _saved(plan: PipelineFigures, other: PipelineFigures) -> float:
    return 1 - other.cycles / plan.cycles


def _gained(plan: PipelineFigures, other: PipelineFigures) -> float:
    return 1 - plan.micro_batches_per_second / other.micro_batches_per_second


def _instead(plan: PipelineFigures, other: PipelineFigures) -> str:
    saved = _saved(plan, other)
    change = f"{saved:.0%} fewer" if saved >= 0 else f"{-saved:.0%} more"
    return f"{other.cycles:,.0f} cycles per step instead of {plan.cycles:,.0f}, {change}"


RULES = (
    memory_exceeds_an_ipu,
    stages_are_uneven,
    pipeline_waits,
    one_works_at_a_time,
    host_is_waited_for,
    recomputed_for_nothing,
    replicas_do_more,
    weights_are_shared,
)

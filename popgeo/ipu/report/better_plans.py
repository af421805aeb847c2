"""Search for better plans of a pipeline by planning: moves of one layer, and plans that need less memory."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from popgeo.ipu.report.pipeline_figures import PipelineFigures
from popgeo.ipu.stage_choices import Schedule

MORE_STAGES = (1.0, 1.25, 1.5, 2.0)  # factors of the least number of stages, tried in order


@dataclass(frozen=True)
class BetterPlan:
    """A plan after a change.

    Attributes:
        words: The change as text.
        change: The change as arguments of `replan`.
        plan: The plan after the change.
    """

    words: str
    change: Mapping[str, Any]
    plan: PipelineFigures


def best_move(plan: PipelineFigures, slowest: int) -> BetterPlan | None:
    """Return the move of a layer from the slowest stage that shortens the step most; None if no move fits.

    A layer moves to a neighboring stage. That stage may also pass one of its layers to the next stage, and so on up to
    the stage with the least work.
    """
    moves = []
    for words, layers in _moves(plan, slowest):
        begins = {names[0]: plan.stages[number].ipu for number, names in enumerate(layers)}
        every = [name for names in layers for name in names]
        if all(every.count(name) == 1 for name in begins):  # otherwise a name would begin two stages
            other = plan.replan(stages=begins)
            if other.fits or not plan.fits:
                moves.append(BetterPlan(words, {"stages": begins}, other))
    return min(moves, key=lambda move: move.plan.cycles, default=None)


def _moves(plan: PipelineFigures, slowest: int) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield each possible move of a layer from a stage: a text, and the layers of all stages after the move."""
    if len(plan.layers[slowest]) < 2:
        return
    work = [stage.forward_pass + stage.backward_pass for stage in plan.stages]
    every = [name for names in plan.layers for name in names]
    for next_stage, side in ((slowest - 1, range(slowest)), (slowest + 1, range(slowest + 1, len(work)))):
        if not side:
            continue
        lightest = min(side, key=work.__getitem__)
        for to in dict.fromkeys((next_stage, lightest)):
            changed = [len(names) for names in plan.layers]
            changed[slowest] -= 1
            changed[to] += 1
            layer = plan.layers[slowest][0 if next_stage < slowest else -1]
            words = f"{layer} to stage {next_stage}"
            if to != next_stage:
                words += f", and one layer of each further stage on to stage {to}"
            names = iter(every)
            yield words, [list(islice(names, size)) for size in changed]


def plan_that_fits(plan: PipelineFigures) -> BetterPlan | None:
    """Return the fastest change that makes the plan fit, with more stages if necessary; None without one."""
    tried = [_fitting(plan, words, change) for words, change in _less_memory(plan)]
    if fitting := [one for one in tried if one is not None]:
        return min(fitting, key=lambda one: one.plan.cycles)
    layers, least = sum(map(len, plan.layers)), max(len(plan.stages) + 1, math.ceil(sum(plan.memory)))
    for number in dict.fromkeys(min(layers, math.ceil(least * times)) for times in MORE_STAGES):
        for recompute in dict.fromkeys((plan.recompute, plan.trains, _each_layer(plan))):
            change = {"stages": number, "recompute": recompute}
            words = ", ".join([f"stages={number}", *_recomputes(recompute)])
            if number > len(plan.stages) and (found := _fitting(plan, words, change)) is not None:
                return found
    return None


def _fitting(plan: PipelineFigures, words: str, change: Mapping[str, Any]) -> BetterPlan | None:
    """Return the plan after a change; None if it does not fit, or no such plan exists."""
    try:
        other = plan.replan(**change)
    except ValueError:  # the model's own block names may not be layer names
        return None
    return BetterPlan(words, change, other) if other.fits else None


def _each_layer(plan: PipelineFigures) -> tuple[str, ...]:
    """Return all layer names for `recompute`, so that each layer is repeated separately."""
    return tuple(dict.fromkeys(name for names in plan.layers for name in names if name)) if plan.trains else ()


def _recomputes(recompute: bool | Sequence[str]) -> list[str]:
    """Return the recomputation as text, in a list; an empty list without recomputation."""
    if not recompute:
        return []
    return ["recompute=True" if recompute is True else f"recompute=[the names of {len(recompute)} layers]"]


def _less_memory(plan: PipelineFigures) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the changes that save memory on the same IPUs, as text and as arguments of `replan`."""
    if plan.schedule is Schedule.GROUPED:
        yield "schedule='lock_step' keeps fewer micro-batches", {"schedule": "lock_step"}
    frees = any(stage.stash_bytes > stage.received_bytes for stage in plan.stages)
    if plan.trains:
        for recompute in (frees, _each_layer(plan)):
            if recompute and plan.recompute != recompute:
                yield _recomputes(recompute)[0], {"recompute": recompute}
    if any(plan.extra_bytes):
        if plan.replicas > 1:
            yield "Options(shard_optimizer_state=True)", {"shard_optimizer_state": True}
        yield "optimizer_off_chip=True", {"optimizer_off_chip": True}

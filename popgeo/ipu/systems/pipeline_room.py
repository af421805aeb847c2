"""Finds choices under which a pipeline that needs too much memory fits."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from popgeo.ipu.stage_choices import Schedule
from popgeo.ipu.systems.pipeline_figures import PipelineFigures

MORE_STAGES = (1.0, 1.25, 1.5, 2.0)  # times the stages that memory asks for, tried in turn


def with_room(plan: PipelineFigures) -> tuple[str, dict[str, Any], PipelineFigures] | None:
    """What makes it fit, in words and as arguments of `replan`, and the plan then: on as many IPUs if that can be."""
    if plan.again is None:
        return None
    fitting = []
    for words, change in _less_memory(plan):
        if (other := _fitting(plan, change)) is not None:
            fitting.append((words, change, other))
    if fitting:
        return min(fitting, key=lambda one: one[2].cycles)
    layers, least = sum(map(len, plan.layers)), max(len(plan.stages) + 1, math.ceil(sum(plan.memory)))
    for number in dict.fromkeys(min(layers, math.ceil(least * times)) for times in MORE_STAGES):
        for recompute in dict.fromkeys((plan.recompute, plan.trains, _each_layer(plan))):
            change = {"stages": number, "recompute": recompute}
            if number > len(plan.stages) and (other := _fitting(plan, change)) is not None:
                return ", ".join([f"stages={number}", *_recomputes(recompute)]), change, other
    return None


def _fitting(plan: PipelineFigures, change: Mapping[str, Any]) -> PipelineFigures | None:
    """The plan with other choices; None where it fits no better or there is none."""
    try:
        other = plan.replan(**change)
    except ValueError:  # blocks that a model names itself may have names that are no layer's
        return None
    return other if other.fits else None


def _each_layer(plan: PipelineFigures) -> tuple[str, ...]:
    """The layers whose results recomputation may keep, which leaves one of them at a time to repeat."""
    return tuple(dict.fromkeys(name for names in plan.layers for name in names if name)) if plan.trains else ()


def _recomputes(recompute: bool | Sequence[str]) -> list[str]:
    """Recomputation in words."""
    if not recompute:
        return []
    return ["recompute=True" if recompute is True else f"recompute=[the names of {len(recompute)} layers]"]


def _less_memory(plan: PipelineFigures) -> Iterator[tuple[str, dict[str, Any]]]:
    """What takes less memory on the same IPUs."""
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

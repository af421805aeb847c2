"""One plan of a step in stages: what it costs on several IPUs, and how it runs here, cut in the same places."""

import inspect
from dataclasses import dataclass

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph
from popgeo.engine.pipeline.staging import Recompute, Staging, Turn
from popgeo.ipu.options import Options
from popgeo.ipu.planning.pipeline import Pipeline
from popgeo.ipu.planning.plan_pipeline import pipeline, plan_step
from popgeo.ipu.planning.schedule import Schedule
from popgeo.ipu.tiles.measure_memory import OutOfTileMemory

_OVERLAPPING = {one for one in Schedule if one is not Schedule.SHARDED}
_USUAL = Schedule(inspect.signature(pipeline).parameters["schedule"].default)  # the same as for the account alone


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """How a step runs in stages.

    Attributes:
        pipeline: What that costs.
        staging: What runs where, and in which order.
    """

    pipeline: Pipeline
    staging: Staging


def stage_plan(step: CapturedStep, update: OpGraph | None, options: Options) -> StagePlan | None:
    """The stages that options ask for; None where they ask for none.

    Args:
        step: The step of one micro-batch.
        update: The program of one update; None where nothing is trained.
        options: Stages, their order, and how many micro-batches there are.

    Raises:
        ValueError: the stages do not cover the model, or the micro-batches of an update are too few for them.
    """
    if options.stages is None:
        return None
    planned, cut = plan_step(
        step,
        update,
        options,
        stages=options.stages,
        schedule=options.schedule or _USUAL,
        recompute=bool(options.recompute),
    )
    _require_enough(planned)
    recompute = None
    if update is not None and options.recompute:
        recompute = Recompute(layers=() if isinstance(options.recompute, bool) else tuple(options.recompute))
    turns = [Turn(task.stage, task.micro_batch, task.backward) for task in planned.tasks]
    staging = Staging(stage_of=cut.stage_of, order=tuple(turns), recompute=recompute, names=cut.names)
    return StagePlan(pipeline=planned, staging=staging)


def checked_schedule(options: Options) -> None:
    """Makes sure that there is the schedule that options name.

    Raises:
        ValueError: there is none of that name.

    Example:
        >>> checked_schedule(Options(schedule="round"))
        Traceback (most recent call last):
            ...
        ValueError: Options.schedule is 'round'; it must be one of 'lock_step', '1f1b', 'grouped', 'sharded', 'phased'.
    """
    names = [one.value for one in Schedule]
    if options.schedule is not None and options.schedule not in names:
        raise ValueError(f"Options.schedule is {options.schedule!r}; it must be one of {', '.join(map(repr, names))}.")


def _require_enough(planned: Pipeline) -> None:
    """Refuses to train with fewer micro-batches than a pipeline needs to fill."""
    stages, count = len(planned.stages), planned.micro_batches
    if planned.trains and planned.schedule in _OVERLAPPING and count < stages:
        raise ValueError(
            f"Options.gradient_accumulation is {count}, but a pipeline of {stages} stages needs at least {stages} "
            "micro-batches for each update, one for each stage. Raise it, take fewer stages, or choose "
            "schedule='sharded', where one micro-batch at a time goes through all stages."
        )


def require_stages_fit(planned: Pipeline, options: Options) -> None:
    """Refuses, where the options are strict, stages of which one fits no IPU.

    Raises:
        OutOfTileMemory: a tile of some IPU needs more memory than it has.
    """
    if options.strict and not planned.fits:
        fullest = max(range(planned.num_ipus), key=planned.memory.__getitem__)
        layers = ", ".join(stage.layers for stage in planned.stages if stage.ipu == fullest)
        raise OutOfTileMemory(
            f"IPU {fullest} ({layers}) needs {planned.memory[fullest]:.1f} times the memory that a tile has. Use more "
            "stages, recompute=True or smaller micro-batches; strict=False reports it without refusing."
        )

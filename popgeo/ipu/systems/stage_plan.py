"""One plan of a step in stages: what it costs on several IPUs, and how it runs here, cut in the same places."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph
from popgeo.engine.pipeline.staging import Pass, Staging
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Pipeline
from popgeo.ipu.report.timeline import num_depths
from popgeo.ipu.stage_choices import Schedule
from popgeo.ipu.systems.cut_model import stages_asked_for
from popgeo.ipu.systems.repeated import recompute_of
from popgeo.ipu.systems.stage_planner import StagePlanner


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """How a step runs in stages.

    Attributes:
        pipeline: What that costs.
        staging: What runs where, and in which order.
        ipus: The IPU of each stage.
    """

    pipeline: Pipeline
    staging: Staging
    ipus: tuple[int, ...]


def stage_plan(step: CapturedStep, update: Callable[[], OpGraph | None], options: Options) -> StagePlan | None:
    """The stages that options ask for, or else the model's blocks; None where neither asks for several.

    Args:
        step: The step of one micro-batch.
        update: Gives the program of one update; None if nothing is trained.
        options: Stages, their order, and how many micro-batches there are.

    Raises:
        ValueError: the stages do not cover the model, the micro-batches of an update are too few for them, or results
            are to be recomputed without stages.
    """
    planner = StagePlanner(step, lambda options: update())
    asked = stages_asked_for(planner.graph, options)
    if asked is None:
        if options.recompute and step.trained:  # a step as a whole repeats nothing
            raise ValueError(
                f"Options.recompute is {options.recompute!r}, but the step runs as a whole, which repeats nothing. Set "
                "Options.stages too, 1 for one IPU, or leave recompute out."
            )
        return None
    planned, cut = planner.plan(replace(options, stages=asked))
    _require_enough(planned)
    recompute = recompute_of(planner.graph, options) if step.trained else None
    passes = [Pass(task.stage, task.micro_batch, task.backward) for task in planned.tasks]
    staging = Staging(stage_of=cut.stage_of, order=tuple(passes), recompute=recompute, names=cut.names)
    return StagePlan(pipeline=planned, staging=staging, ipus=cut.ipus)


def num_pipeline_stages(planned: Pipeline) -> int:
    """The stages that a pipeline has to fill: stages that follow one another on one IPU are one, as in PopTorch."""
    return 1 + sum(one.ipu != other.ipu for one, other in zip(planned.stages, planned.stages[1:], strict=False))


class TooFewMicroBatchesError(ValueError):
    """An update has fewer micro-batches than its pipeline, of that many `stages`, needs to fill."""

    stages: int


def _require_enough(planned: Pipeline) -> None:
    """Refuses to train with fewer micro-batches than a pipeline needs to fill.

    When a stage's passes share a turn, as in PopTorch, a micro-batch takes twice the stages less one; PopTorch demands
    as many for each update (its user guide: "the number of pipeline stages (forward and backward)").
    """
    stages, count = num_pipeline_stages(planned), planned.micro_batches
    needed = num_depths(stages, trains=True) if planned.schedule is Schedule.LOCK_STEP else stages
    if planned.trains and planned.schedule not in (Schedule.SHARDED, Schedule.PHASED) and count < needed:
        error = TooFewMicroBatchesError(
            f"Options.gradient_accumulation is {count}, but to train {stages} stages with schedule "
            f"{planned.schedule.value!r} an update needs at least {needed} micro-batches. Raise it, take fewer "
            "stages, or choose schedule='sharded', if one micro-batch at a time goes through all stages."
        )
        error.stages = stages
        raise error

"""One plan of a step in stages: what it costs on several IPUs, and how it runs here, cut in the same places."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph
from popgeo.capture.passes import fold_constants
from popgeo.engine.pipeline.staging import Pass, Recompute, Staging
from popgeo.ipu.options import Options
from popgeo.ipu.systems.cut import blocks_of
from popgeo.ipu.systems.cut_blocks import BLOCKS, EACH_BLOCK, has_blocks, several_ipus
from popgeo.ipu.systems.pipeline import Pipeline
from popgeo.ipu.systems.plan_pipeline import plan_step
from popgeo.ipu.systems.schedule import USUAL, Schedule
from popgeo.ipu.tiles.measure_memory import OutOfTileMemory

_OVERLAPPING = {one for one in Schedule if one not in (Schedule.SHARDED, Schedule.PHASED)}
MOST_STAGES = 64  # as far as the number of IPUs that a model fits is looked for


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
        update: Gives the program of one update; None where nothing is trained.
        options: Stages, their order, and how many micro-batches there are.

    Raises:
        ValueError: the stages do not cover the model, the micro-batches of an update are too few for them, or results
            are to be recomputed without stages.
    """
    stages = options.stages
    if stages is None or stages == EACH_BLOCK:
        if not (several_ipus(step.graph) if stages is None else has_blocks(step.graph)):
            _refuse_recompute(step, options)
            return None
        stages = stages or BLOCKS
    planned, cut = plan_step(
        step,
        program := update(),
        options,
        stages=stages,
        schedule=options.schedule or USUAL,
        recompute=options.recompute,
    )
    _require_enough(planned)
    recompute = None
    if program is not None and options.recompute:
        recompute = Recompute(layers=() if isinstance(options.recompute, bool) else tuple(options.recompute))
    passes = [Pass(task.stage, task.micro_batch, task.backward) for task in planned.tasks]
    staging = Staging(stage_of=cut.stage_of, order=tuple(passes), recompute=recompute, names=cut.names)
    return StagePlan(pipeline=planned, staging=staging, ipus=cut.ipus)


def _refuse_recompute(step: CapturedStep, options: Options) -> None:
    """Refuses to keep less between passes where a step has none."""
    if options.recompute and step.trained:
        raise ValueError(
            f"Options.recompute is {options.recompute!r}, but the step runs as a whole, which repeats nothing. Set "
            "Options.stages too, 1 for one IPU, or leave recompute out."
        )


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
    """Refuses to train with fewer micro-batches than a pipeline needs to fill.

    Where a stage's passes share a turn, as in PopTorch, a micro-batch takes twice the stages less one; PopTorch demands
    as many for each update (its user guide: "the number of pipeline stages (forward and backward)").
    """
    stages, count = len(planned.stages), planned.micro_batches
    needed = 2 * stages - 1 if planned.schedule.value == "lock_step" else stages
    if planned.trains and planned.schedule in _OVERLAPPING and count < needed:
        raise ValueError(
            f"Options.gradient_accumulation is {count}, but to train {stages} stages with schedule "
            f"{planned.schedule.value!r} an update needs at least {needed} micro-batches. Raise it, take fewer "
            "stages, or choose schedule='sharded', where one micro-batch at a time goes through all stages."
        )


def require_stages_fit(planned: Pipeline, step: CapturedStep, update: OpGraph | None, options: Options) -> None:
    """Refuses stages of which one fits no IPU.

    Raises:
        OutOfTileMemory: a tile of some IPU needs more memory than it has; the message names its layers, and how many
            stages would do.
    """
    if planned.fits:
        return
    fullest = max(range(planned.num_ipus), key=planned.memory.__getitem__)
    layers = ", ".join(stage.layers for stage in planned.stages if stage.ipu == fullest)
    raise OutOfTileMemory(
        f"IPU {fullest} ({layers}) needs {planned.memory[fullest]:.1f} times the memory that it has. "
        f"{what_would_fit(step, update, options)} Smaller micro-batches and recompute=True need less; strict=False "
        "reports it without refusing."
    )


def what_would_fit(step: CapturedStep, update: OpGraph | None, options: Options) -> str:
    """The smallest number of IPUs that a step fits, cut automatically, as a sentence; or the layer that fits none."""
    layers = len(blocks_of(fold_constants(step.graph)))
    phased = options.schedule == Schedule.PHASED.value  # which takes one IPU, whatever it needs
    order = USUAL if phased or options.schedule is None else options.schedule

    def plan(stages: int) -> Pipeline:
        enough = replace(options, gradient_accumulation=max(stages, options.gradient_accumulation))
        given = enough if update is not None else options
        return plan_step(step, update, given, stages=stages, schedule=order, recompute=options.recompute)[0]

    most = min(layers, MOST_STAGES)
    finest = plan(most)
    if not finest.fits:
        largest = max(range(most), key=finest.memory.__getitem__)
        return (
            f"{finest.stages[largest].layers or 'The model'} alone needs {finest.memory[largest]:.1f} times the memory "
            f"of an IPU, so no number of IPUs up to {most}, one for each layer, would do."
        )
    low, high = 0, most  # what does not fit, and what does
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if plan(middle).fits else (middle, high)
    return f"Options(stages={high}) would do, on {high} IPU{'s' if high > 1 else ''}."

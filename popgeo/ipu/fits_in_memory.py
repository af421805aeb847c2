"""Checks whether a step fits in memory; a step that does not fit raises an error with advice."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph
from popgeo.ipu.cost.plan import OpCost
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Pipeline
from popgeo.ipu.stage_choices import USUAL, Schedule
from popgeo.ipu.systems.stage_planner import StagePlanner
from popgeo.ipu.tiles.memory_use import MemoryUse

MOST_STAGES = 64  # upper limit of the search for the number of IPUs that a model fits


class OutOfTileMemory(ValueError):
    """A tile needs more memory than it has."""


def require_fit(use: MemoryUse, costs: Sequence[OpCost] = (), advice: Callable[[], str] = str) -> None:
    """Raise if a step does not fit in the memory of the tiles.

    Args:
        use: Bytes per tile.
        costs: The operations of the memory curve, to name the operation that needs most memory.
        advice: A function that returns a sentence about a configuration that would fit.

    Raises:
        OutOfTileMemory: a tile needs more memory than it has; the message names tile, operation and largest values.
    """
    if use.fits:
        return
    over = int((use.peak > use.limit).sum())
    step = f"operation {use.peak_op}"
    if use.peak_op < len(costs):
        running = costs[use.peak_op]
        step = f"{running.target} {running.shapes} ({running.phase}{', ' + running.source if running.source else ''})"
    largest = ", ".join(f"{item.name} {item.nbytes:,} B" for item in use.largest[:4])
    raise OutOfTileMemory(
        f"Tile {use.peak_tile} needs {int(use.peak[use.peak_tile]):,} bytes of its {use.limit:,} while {step} runs; "
        f"{over} of {len(use.peak)} tiles exceed theirs. Largest there: {largest}. Use smaller batches and more "
        f"gradient_accumulation, fewer channels, float16, or more IPUs; strict=False reports it without refusing. "
        f"{advice()}".rstrip()
    )


def require_stages_fit(planned: Pipeline, advice: Callable[[], str]) -> None:
    """Raise if a stage does not fit in the memory of its IPU.

    Args:
        planned: The stages.
        advice: A function that returns a sentence about a configuration that would fit.

    Raises:
        OutOfTileMemory: a tile of some IPU needs more memory than it has; the message names the layers of that IPU and
            the number of stages that would fit.
    """
    if planned.fits:
        return
    fullest = max(range(planned.num_ipus), key=planned.memory.__getitem__)
    layers = ", ".join(stage.layers for stage in planned.stages if stage.ipu == fullest)
    raise OutOfTileMemory(
        f"IPU {fullest} ({layers}) needs {planned.memory[fullest]:.1f} times the memory that it has. {advice()} "
        "Smaller micro-batches and recompute=True need less; strict=False reports it without refusing."
    )


def suggest_stages(step: CapturedStep, update: OpGraph | None, options: Options) -> str:
    """Return a sentence with the fewest stages that fit in memory, or with a layer that is too large for an IPU."""
    planner = StagePlanner(step, lambda options: update)
    # Sequential phases run on one IPU, however much memory they need, so more stages would not help.
    order = USUAL.value if options.schedule == Schedule.PHASED.value else options.schedule

    def plan(stages: int) -> Pipeline:
        enough = max(stages, options.gradient_accumulation) if update is not None else options.gradient_accumulation
        return planner.plan(replace(options, stages=stages, schedule=order, gradient_accumulation=enough))[0]

    most = min(len(planner.layers), MOST_STAGES)
    finest = plan(most)
    if not finest.fits:
        largest = max(range(most), key=finest.memory.__getitem__)
        return (
            f"{finest.stages[largest].layers or 'The model'} alone needs {finest.memory[largest]:.1f} times the memory "
            f"of an IPU, so the model fits no number of IPUs up to {most}, one for each layer."
        )
    least = 1 + bisect_left(range(1, most), True, key=lambda stages: plan(stages).fits)
    return f"Options(stages={least}) would fit, on {least} IPU{'s' if least > 1 else ''}."

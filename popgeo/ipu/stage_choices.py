"""The choices of stages, schedule and recomputation, in the forms that users type."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from popgeo.capture.blocks import checked_ipu

BLOCKS = "blocks"  # a new stage begins wherever the IPU of the model's blocks changes
EACH_BLOCK = "each block"  # every block is a stage, on its own IPU unless it names one


class Schedule(str, Enum):
    """The order of micro-batches in the stages of a pipeline.

    Attributes:
        LOCK_STEP: PopTorch's pipelined execution on an IPU, and the default. In each turn every stage takes its next
            forward and its next backward pass. The next turn begins for all IPUs at once, when the slowest IPU is done
            and the results are copied: copies between IPUs are collective in Poplar, so no IPU runs ahead
            (docs/notes/transforms/pipelining.md of github.com/graphcore/popart).
        ONE_F_ONE_B: Each stage alternates between a forward and a backward pass as soon as it can (1F1B), waits for no
            other IPU, and keeps few activations. A machine with independent links could reach it.
        GROUPED: All forward passes of an update come first, then all backward passes (GPipe, arXiv:1811.06965).
        SHARDED: One micro-batch at a time goes through all stages; only one IPU works at a time.
        PHASED: All stages follow each other on one IPU. Its weights, gradients and kept activations are in streaming
            memory and are loaded for each pass (PopTorch's `SerialPhasedExecution`).
    """

    LOCK_STEP = "lock_step"
    ONE_F_ONE_B = "1f1b"
    GROUPED = "grouped"
    SHARDED = "sharded"
    PHASED = "phased"


USUAL = Schedule.LOCK_STEP
"""The schedule of the machine, and the default."""


@dataclass(frozen=True, init=False)
class Stage:
    """Blocks of a model that run together on one IPU, for `Options.stages`.

    Args:
        names: Names of the blocks.

    Raises:
        ValueError: there is no name, or an entry is not a name.

    Example:
        >>> Stage("encoder", "pooling").ipu(1)
        Stage('encoder', 'pooling').ipu(1)
    """

    names: tuple[str, ...]
    on_ipu: int | None = None

    def __init__(self, *names: str) -> None:
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"Stage received {names!r}; give at least one name of a block.")
        object.__setattr__(self, "names", names)

    def ipu(self, ipu_id: int) -> "Stage":
        """Return the same blocks on a given IPU. Without this call each stage has its own IPU."""
        placed = Stage(*self.names)
        object.__setattr__(placed, "on_ipu", checked_ipu(ipu_id))
        return placed

    def __repr__(self) -> str:
        """Return the stage as Python code."""
        where = "" if self.on_ipu is None else f".ipu({self.on_ipu})"
        return f"{type(self).__name__}({', '.join(map(repr, self.names))}){where}"


Stages = int | str | Sequence[int] | Sequence[Stage] | Mapping[str, int]
"""The forms of `Options.stages`."""


def checked_stages(stages: Any) -> Any:
    """Return stages as an immutable value. Whether the model has such stages is checked when it is cut.

    Raises:
        ValueError: the stages have none of the forms of `Options.stages`.

    Example:
        >>> checked_stages([0, 3, 3]), checked_stages("each block")
        ((0, 3, 3), 'each block')
        >>> checked_stages(2.5)
        Traceback (most recent call last):
            ...
        ValueError: Options.stages is 2.5; give a number of stages, at least one, the layers of each IPU as [0, 3, 3], \
the layers that begin a stage and their IPU as {'layers.3': 1}, or 'blocks', 'each block' or a list of ipu.Stage for \
the blocks that the model names.
    """
    match stages:
        case None | str() if stages in (None, BLOCKS, EACH_BLOCK):
            return stages
        case int() if _is_count(stages) and stages >= 1:
            return stages
        case Mapping() if stages and all(isinstance(name, str) and _is_count(ipu) for name, ipu in stages.items()):
            return dict(stages)
        case Sequence() if stages and (all(map(_is_count, stages)) or all(isinstance(one, Stage) for one in stages)):
            return tuple(stages)
    raise ValueError(
        f"Options.stages is {stages!r}; give a number of stages, at least one, the layers of each IPU as [0, 3, 3], "
        f"the layers that begin a stage and their IPU as {{'layers.3': 1}}, or {BLOCKS!r}, {EACH_BLOCK!r} or a list of "
        "ipu.Stage for the blocks that the model names."
    )


# The names of schedules in TensorFlow for the IPU. Both pipelined schedules are "lock_step".
_LOCK_STEP = ("PipelineSchedule.Grouped", "PipelineSchedule.Interleaved")
_OF_TENSORFLOW = {**dict.fromkeys(_LOCK_STEP, "lock_step"), "PipelineSchedule.Sequential": "sharded"}


def checked_schedule(schedule: Schedule | str | None) -> str | None:
    """Return the name of a schedule, also for a name of TensorFlow such as `PipelineSchedule.Grouped`.

    Raises:
        ValueError: no schedule has this name.

    Example:
        >>> checked_schedule(Schedule.ONE_F_ONE_B)
        '1f1b'
        >>> checked_schedule("round")
        Traceback (most recent call last):
            ...
        ValueError: Options.schedule is 'round'; it must be one of 'lock_step', '1f1b', 'grouped', 'sharded', 'phased'.
    """
    names = [one.value for one in Schedule]
    schedule = _OF_TENSORFLOW.get(schedule, schedule) if isinstance(schedule, str) else schedule
    if schedule is not None and schedule not in names:
        raise ValueError(f"Options.schedule is {schedule!r}; it must be one of {', '.join(map(repr, names))}.")
    return None if schedule is None else Schedule(schedule).value


def checked_recompute(recompute: Any) -> bool | tuple[str, ...]:
    """Return whether forward passes are repeated, or the layers with kept results as a tuple.

    Raises:
        ValueError: the choice is neither a bool nor a list of layers.
    """
    if isinstance(recompute, bool):
        return recompute
    if isinstance(recompute, str) or not isinstance(recompute, Sequence):
        raise ValueError(f"Options.recompute is {recompute!r}; give True, False or a list of layers to keep.")
    return tuple(recompute)


def _is_count(number: Any) -> bool:
    """Check whether a number is an integer and no bool."""
    return isinstance(number, int) and not isinstance(number, bool)

"""The turns of a pipeline that keeps step, and which IPU sets the pace of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from popgeo.ipu.systems.schedule import TimedPass, depth_of, num_depths


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of a pipeline that keeps step.

    Attributes:
        start: When it starts, in cycles.
        end: When its slowest IPU is done.
        ipu: The slowest one.
        filling: Whether the last stage has no work yet.
        draining: Whether the first stage begins no more micro-batches.
    """

    start: float
    end: float
    ipu: int
    filling: bool
    draining: bool


def turns_of(tasks: Sequence[TimedPass], stages: int, micro_batches: int) -> list[Turn]:
    """The turns of a timeline in lock-step: one for each micro-batch, and those that fill and drain the pipeline.

    Example:
        >>> from popgeo.ipu.systems.schedule import timeline
        >>> tasks = timeline([1.0, 5.0], [2.0, 2.0], ipus=[0, 1], micro_batches=3)
        >>> turns = turns_of(tasks, stages=2, micro_batches=3)
        >>> [(turn.end - turn.start, turn.ipu) for turn in turns]
        [(1.0, 0), (7.0, 1), (7.0, 1), (7.0, 1), (2.0, 0)]
        >>> [turn.filling for turn in turns], [turn.draining for turn in turns]
        ([True, False, False, False, False], [False, False, False, True, True])
    """
    trains = any(task.backward for task in tasks)
    by_turn: dict[int, dict[int, tuple[float, float]]] = {}
    for task in tasks:
        number = task.micro_batch + depth_of(task.stage, task.backward, stages)
        ipus = by_turn.setdefault(number, {})
        first, last = ipus.get(task.ipu, (task.start, task.end))
        ipus[task.ipu] = min(first, task.start), max(last, task.end)
    turns = []
    for number in range(micro_batches + num_depths(stages, trains) - 1):
        spans = by_turn[number]
        slowest = max(spans, key=lambda ipu: spans[ipu][1])
        turns.append(
            Turn(
                start=min(first for first, _ in spans.values()),
                end=spans[slowest][1],
                ipu=slowest,
                filling=number < stages - 1,
                draining=number >= micro_batches,
            )
        )
    return turns

"""The timeline of a pipeline: passes, turns, and the activities of each IPU."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from popgeo.ipu.report.stage_cost import StageCost

KINDS = ("forward", "backward", "receive", "host", "streaming", "update", "wait")
SHOWN = 3  # micro-batches at each end of a timeline that is too long to show


@dataclass(frozen=True, kw_only=True)
class TimedPass:
    """One pass of one micro-batch through one stage.

    Attributes:
        stage: The stage.
        ipu: IPU of the stage.
        micro_batch: Number of the micro-batch, from 0.
        backward: Whether it is the backward pass.
        start: Cycle at which it starts to receive its inputs.
        end: Cycle at which it ends.
        receive: Cycles at its start that are only receiving.
    """

    stage: int
    ipu: int
    micro_batch: int
    backward: bool
    start: float
    end: float
    receive: float = 0.0


def num_depths(stages: int, trains: bool) -> int:
    """Return the turns of one micro-batch from its first pass to its last, as Poplar counts pipeline stages.

    The last stage runs the backward pass in the turn of the forward pass. All other stages have two turns.

    Example:
        >>> num_depths(8, trains=True), num_depths(8, trains=False)
        (15, 8)
    """
    return 2 * stages - 1 if trains else stages


def depth_of(stage: int, is_backward: bool, stages: int) -> int:
    """Return the turn of a pass, counted from the micro-batch's first turn."""
    return 2 * (stages - 1) - stage if is_backward else stage


def most_in_flight(tasks: Sequence[TimedPass], stage: int, trains: bool) -> int:
    """Return the largest number of micro-batches with activations that a stage keeps at one time.

    Example:
        >>> from popgeo.ipu.stage_choices import Schedule
        >>> from popgeo.ipu.systems.schedule import timed_passes
        >>> for schedule in (Schedule.LOCK_STEP, Schedule.ONE_F_ONE_B):
        ...     tasks = timed_passes([1.0, 1.0], [2.0, 2.0], ipus=[0, 1], micro_batches=8, schedule=schedule)
        ...     most_in_flight(tasks, 0, True), most_in_flight(tasks, 1, True)
        (3, 1)
        (2, 1)
    """
    if not trains:
        return 1
    changes = [(task.end, -1) if task.backward else (task.start, 1) for task in tasks if task.stage == stage]
    return max(accumulate(change for _, change in sorted(changes)))


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of a pipeline in lock-step.

    Attributes:
        start: Cycle at which it starts.
        end: Cycle at which its slowest IPU ends.
        ipu: Slowest IPU.
        filling: Whether the last stage has no work yet.
        draining: Whether the first stage has no more micro-batches.
    """

    start: float
    end: float
    ipu: int
    filling: bool
    draining: bool


def turns_of(tasks: Sequence[TimedPass], stages: int, micro_batches: int) -> list[Turn]:
    """Return the turns of a timeline in lock-step: one per micro-batch, and more to fill and drain the pipeline.

    Example:
        >>> from popgeo.ipu.systems.schedule import timed_passes
        >>> tasks = timed_passes([1.0, 5.0], [2.0, 2.0], ipus=[0, 1], micro_batches=3)
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
        start, end = min(first for first, _ in spans.values()), spans[slowest][1]
        filling, draining = number < stages - 1, number >= micro_batches
        turns.append(Turn(start=start, end=end, ipu=slowest, filling=filling, draining=draining))
    return turns


@dataclass(frozen=True, kw_only=True)
class Span:
    """A period with one activity of an IPU. Times are cycles from the start of the step.

    Attributes:
        kind: Activity: `forward` and `backward` passes; `receive` from other IPUs; `host` and `streaming`, waiting for
            the host and for streaming memory; `update`. An IPU without a span waits for other IPUs.
        ipu: Number of the IPU.
        stage: Number of the stage; None for the update.
        micro_batch: Number of the micro-batch, from 0; None for the update.
        start: Cycle at which it starts.
        end: Cycle at which it ends.
    """

    kind: str
    ipu: int
    stage: int | None = None
    micro_batch: int | None = None
    start: float
    end: float


def spans_of(tasks: Sequence[TimedPass], stages: Sequence[StageCost], update: Sequence[float]) -> tuple[Span, ...]:
    """Return all spans of a step in the order of their starts, without empty spans.

    Args:
        tasks: Every pass of every micro-batch.
        stages: Cost of each stage.
        update: Cycles of the update on each IPU.
    """
    found = [span for task in tasks for span in _spans_of_pass(task, stages[task.stage])]
    last = max(task.end for task in tasks)
    found += [Span(kind="update", ipu=ipu, start=last, end=last + cycles) for ipu, cycles in enumerate(update)]
    return tuple(span for span in found if span.end - span.start > 1e-6)


def _spans_of_pass(task: TimedPass, stage: StageCost) -> Iterator[Span]:
    """Yield the spans of a pass: first the IPU receives and waits, then it computes."""
    arrives = stage.receive_backward if task.backward else stage.receive_forward
    streams = stage.streaming_backward if task.backward else stage.streaming_forward
    waits = {"receive": arrives, "streaming": streams, "host": task.receive - arrives - streams}
    begins = task.start
    for kind in (*waits, "backward" if task.backward else "forward"):
        ends = begins + max(0.0, waits[kind]) if kind in waits else task.end
        yield Span(kind=kind, ipu=task.ipu, stage=task.stage, micro_batch=task.micro_batch, start=begins, end=ends)
        begins = ends


def cycles_by_kind(spans: Sequence[Span], num_ipus: int, cycles: float) -> list[dict[str, float]]:
    """Return the cycles of each kind of activity for each IPU; waiting fills up the step."""
    table = [dict.fromkeys(KINDS, 0.0) for _ in range(num_ipus)]
    for span in spans:
        table[span.ipu][span.kind] += span.end - span.start
    for of in table:
        of["wait"] = max(0.0, cycles - sum(of.values()))
    return table


def windows_of(tasks: Sequence[TimedPass], cycles: float, in_groups: bool) -> list[tuple[float, float]]:
    """Return the parts of a step that show how its pipeline fills, runs and drains, from first to last cycle.

    The whole step is one part if the gaps would be short.

    Args:
        tasks: Every pass of every micro-batch.
        cycles: Cycles of the step.
        in_groups: Whether all forward passes come before all backward passes. If so, the change between them is shown
            as well.
    """
    count = max(task.micro_batch for task in tasks) + 1
    groups = ((False,), (True,)) if in_groups else ((False, True),)
    starts, ends = [0.0], list[float]()
    for group in groups:
        its = [task for task in tasks if task.backward in group]
        ends.append(max(task.end for task in its if task.micro_batch < SHOWN))
        starts.append(min(task.start for task in its if task.micro_batch >= count - SHOWN))
    parts = list(zip(starts, [*ends, cycles], strict=True))
    shown = sum(end - start for start, end in parts)
    joined = parts[:1]
    for start, end in parts[1:]:
        if start - joined[-1][1] < shown / 2:  # the gap is short
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined

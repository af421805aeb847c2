"""The start of each pass of each stage, in the order of a schedule."""

from collections.abc import Iterator, Sequence

from popgeo.ipu.report.timeline import TimedPass, depth_of, num_depths
from popgeo.ipu.stage_choices import Schedule

Lengths = tuple[Sequence[float], Sequence[float]]  # cycles of each stage's forward pass, and of its backward pass


def timed_passes(
    forward: Sequence[float],
    backward: Sequence[float],
    ipus: Sequence[int],
    micro_batches: int,
    schedule: Schedule = Schedule.LOCK_STEP,
    *,
    receive: tuple[Sequence[float], Sequence[float]] = ((), ()),
) -> list[TimedPass]:
    """Return every pass from the first micro-batch to the last, in the order of their starts.

    A forward pass waits for the micro-batch's pass of the stage before. A backward pass waits for the backward pass of
    the next stage; in the last stage, for its own forward pass. An IPU runs one pass at a time.

    Args:
        forward: Cycles of a forward pass of each stage, receiving included.
        backward: Cycles of a backward pass of each stage; empty without training.
        ipus: IPU of each stage.
        micro_batches: Micro-batches between two updates.
        schedule: Order of the passes.
        receive: Cycles of each forward and of each backward pass that are receiving, for the result only.

    Example:
        >>> tasks = timed_passes([1.0, 1.0], [2.0, 2.0], ipus=[0, 1], micro_batches=2)
        >>> max(task.end for task in tasks)  # turns of 1, 3, 3 and 2 cycles
        9.0
    """
    lengths, received = (forward, backward), tuple(part or [0.0] * len(forward) for part in receive)
    if schedule is Schedule.LOCK_STEP:
        passes = _turn_passes(lengths, ipus, micro_batches)
    else:
        passes = _ready_passes(lengths, ipus, micro_batches, schedule)
    return [
        TimedPass(
            stage=stage,
            ipu=ipus[stage],
            micro_batch=micro_batch,
            backward=is_backward,
            start=begins,
            end=begins + lengths[is_backward][stage],
            receive=received[is_backward][stage],
        )
        for stage, is_backward, micro_batch, begins in passes
    ]


def _turn_passes(lengths: Lengths, ipus: Sequence[int], micro_batches: int) -> Iterator[tuple[int, bool, int, float]]:
    """Yield stage, direction, micro-batch and start of each pass; a turn begins when the previous turn ends."""
    stages = len(lengths[0])
    passes = [(stage, is_backward) for is_backward in (False, True) for stage in range(len(lengths[is_backward]))]
    passes.sort(key=lambda one: (depth_of(one[0], one[1], stages), one[1]))
    start = 0.0
    for turn in range(micro_batches + num_depths(stages, bool(lengths[1])) - 1):
        free = dict.fromkeys(ipus, start)
        for stage, is_backward in passes:
            micro_batch = turn - depth_of(stage, is_backward, stages)
            if 0 <= micro_batch < micro_batches:
                yield stage, is_backward, micro_batch, free[ipus[stage]]
                free[ipus[stage]] += lengths[is_backward][stage]
        start = max(free.values())


def _ready_passes(
    lengths: Lengths, ipus: Sequence[int], micro_batches: int, schedule: Schedule
) -> Iterator[tuple[int, bool, int, float]]:
    """Yield the same as `_turn_passes`, but a pass begins when its inputs are ready; backward passes go first."""
    stages, trains = len(lengths[0]), bool(lengths[1])
    ends: dict[tuple[int, int, bool], float] = {}
    free = dict.fromkeys(ipus, 0.0)
    kinds = (False, True) if trains else (False,)
    coming = {(stage, kind): 0 for stage in range(stages) for kind in kinds}  # the next micro-batch

    def ready(stage: int, is_backward: bool) -> float | None:
        """Return the time at which the inputs of the stage's next pass are ready; None if it is unknown."""
        micro_batch = coming[stage, is_backward]
        if micro_batch >= micro_batches:
            return None
        if is_backward:
            own = ends.get((stage, micro_batch, False))
            behind = ends.get((stage + 1, micro_batch, True)) if stage + 1 < stages else own
            all_forward = schedule is not Schedule.GROUPED or coming[stage, False] == micro_batches
            return None if own is None or behind is None or not all_forward else max(own, behind)
        if trains and schedule is Schedule.ONE_F_ONE_B and micro_batch - coming[stage, True] >= stages - stage:
            return None
        if stage:
            return ends.get((stage - 1, micro_batch, False))
        if schedule in (Schedule.SHARDED, Schedule.PHASED) and micro_batch:
            return ends.get((0, micro_batch - 1, True) if trains else (stages - 1, micro_batch - 1, False))
        return 0.0

    while True:
        passes = [(stage, is_backward, ready(stage, is_backward)) for stage, is_backward in coming]
        found = [(max(at, free[ipus[stage]]), stage, back) for stage, back, at in passes if at is not None]
        if not found:
            return
        begins, stage, is_backward = min(found, key=lambda one: (one[0], not one[2], -one[1]))
        micro_batch = coming[stage, is_backward]
        yield stage, is_backward, micro_batch, begins
        ends[stage, micro_batch, is_backward] = free[ipus[stage]] = begins + lengths[is_backward][stage]
        coming[stage, is_backward] += 1

"""Works out when each stage works on which micro-batch, in the order that a schedule says."""

from collections.abc import Iterator, Sequence

from popgeo.ipu.report.timeline import TimedPass, depth_of, num_depths
from popgeo.ipu.stage_choices import Schedule


def timed_passes(
    forward: Sequence[float],
    backward: Sequence[float],
    ipus: Sequence[int],
    micro_batches: int,
    schedule: Schedule = Schedule.LOCK_STEP,
    *,
    receive: tuple[Sequence[float], Sequence[float]] = ((), ()),
) -> list[TimedPass]:
    """When every pass runs, from the first micro-batch to the last, in the order of the starts.

    A forward pass waits for the same micro-batch's pass of the stage before; a backward pass for that of the stage
    behind, which at the last stage is its own forward pass. An IPU does one thing at a time.

    Args:
        forward: Cycles of a forward pass of each stage, what it receives included.
        backward: Cycles of a backward pass of each stage; empty if nothing is trained.
        ipus: The IPU of each stage.
        micro_batches: How many there are between two updates.
        schedule: The order.
        receive: How much of each forward and of each backward pass is receiving, which only the tasks tell.

    Example:
        >>> tasks = timed_passes([1.0, 1.0], [2.0, 2.0], ipus=[0, 1], micro_batches=2)
        >>> max(task.end for task in tasks)  # turns of 1, 3, 3 and 2 cycles
        9.0
    """
    lengths, received = (forward, backward), tuple(part or [0.0] * len(forward) for part in receive)

    def task(stage: int, is_backward: bool, micro_batch: int, begins: float) -> TimedPass:
        return TimedPass(
            stage=stage,
            ipu=ipus[stage],
            micro_batch=micro_batch,
            backward=is_backward,
            start=begins,
            end=begins + lengths[is_backward][stage],
            receive=received[is_backward][stage],
        )

    if schedule is Schedule.LOCK_STEP:
        return [task(*pass_, begins) for pass_, begins in _in_step(lengths, ipus, micro_batches)]
    state = _State(len(forward), ipus, micro_batches, bool(backward), schedule)
    tasks = []
    while (chosen := state.earliest()) is not None:
        begins, is_backward, stage = chosen
        micro_batch = state.run(stage, is_backward, begins + lengths[is_backward][stage])
        tasks.append(task(stage, is_backward, micro_batch, begins))
    return tasks


def _in_step(
    lengths: tuple[Sequence[float], Sequence[float]], ipus: Sequence[int], micro_batches: int
) -> Iterator[tuple[tuple[int, bool, int], float]]:
    """Stage, direction and micro-batch of each pass, and when it begins; a turn begins when the one before is over."""
    stages = len(lengths[0])
    passes = [(stage, is_backward) for is_backward in (False, True) for stage in range(len(lengths[is_backward]))]
    passes.sort(key=lambda one: (depth_of(one[0], one[1], stages), one[1]))
    start = 0.0
    for turn in range(micro_batches + num_depths(stages, bool(lengths[1])) - 1):
        free = dict.fromkeys(ipus, start)
        for stage, is_backward in passes:
            micro_batch = turn - depth_of(stage, is_backward, stages)
            if 0 <= micro_batch < micro_batches:
                yield (stage, is_backward, micro_batch), free[ipus[stage]]
                free[ipus[stage]] += lengths[is_backward][stage]
        start = max(free.values())


class _State:
    """How far each stage and each IPU has got."""

    def __init__(self, stages: int, ipus: Sequence[int], micro_batches: int, trains: bool, schedule: Schedule) -> None:
        self.stages, self.ipus, self.micro_batches = stages, ipus, micro_batches
        self.trains, self.schedule = trains, schedule
        self.ends: dict[tuple[int, int, bool], float] = {}
        self.free = dict.fromkeys(ipus, 0.0)
        self.next = {(stage, kind): 0 for stage in range(stages) for kind in (False, True)}

    def earliest(self) -> tuple[float, bool, int] | None:
        """The pass that can begin first: when, whether it is a backward one, and its stage; backward ones go ahead."""
        ready = ((one, self._ready(*one)) for one in self.next)
        found = [(max(at, self.free[self.ipus[s]]), not back, -s) for (s, back), at in ready if at is not None]
        if not found:
            return None
        begins, is_forward, stage = min(found)
        return begins, not is_forward, -stage

    def run(self, stage: int, is_backward: bool, end: float) -> int:
        """Notes that the stage's next pass ends then, and returns its micro-batch."""
        micro_batch = self.next[stage, is_backward]
        self.next[stage, is_backward] += 1
        self.ends[stage, micro_batch, is_backward] = self.free[self.ipus[stage]] = end
        return micro_batch

    def _ready(self, stage: int, is_backward: bool) -> float | None:
        """When all that the stage's next pass waits for is there; None while that is not known."""
        micro_batch = self.next[stage, is_backward]
        if micro_batch >= self.micro_batches or (is_backward and not self.trains):
            return None
        if is_backward:
            own = self.ends.get((stage, micro_batch, False))
            behind = self.ends.get((stage + 1, micro_batch, True)) if stage + 1 < self.stages else own
            all_forward = self.schedule is not Schedule.GROUPED or self.next[stage, False] == self.micro_batches
            return None if own is None or behind is None or not all_forward else max(own, behind)
        held = micro_batch - self.next[stage, True]
        if self.trains and self.schedule is Schedule.ONE_F_ONE_B and held >= self.stages - stage:
            return None
        if stage:
            return self.ends.get((stage - 1, micro_batch, False))
        if self.schedule in (Schedule.SHARDED, Schedule.PHASED) and micro_batch:
            last = (0, micro_batch - 1, True) if self.trains else (self.stages - 1, micro_batch - 1, False)
            return self.ends.get(last)
        return 0.0

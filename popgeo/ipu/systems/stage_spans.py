"""What each IPU of a pipeline does when: the spans of time that pictures, pages and traces draw."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from popgeo.ipu.stage_choices import Schedule
from popgeo.ipu.systems.pipeline_figures import PipelineFigures
from popgeo.ipu.systems.schedule import TimedPass

KINDS = ("forward", "backward", "receive", "host", "streaming", "update", "wait")
SHOWN = 3  # micro-batches at each end of a timeline that is too long to be read whole


@dataclass(frozen=True, kw_only=True)
class Span:
    """A time in which an IPU does one thing; times are cycles from the start of the step.

    Attributes:
        kind: `forward` and `backward` passes; `receive`, from other IPUs; `host` and `streaming`, waiting for the host
            and for streaming memory; `update`. An IPU waits for others if it has no span.
        ipu: Which.
        stage: Of which stage; None for the update.
        micro_batch: Of which micro-batch, counted from 0; None for the update.
        start: When it begins.
        end: When it is done.
    """

    kind: str
    ipu: int
    stage: int | None
    micro_batch: int | None
    start: float
    end: float


def spans(plan: PipelineFigures) -> list[Span]:
    """All of a step, in the order of the starts; what takes no time is left out."""
    found = [span for task in plan.tasks for span in _task_spans(plan, task)]
    last = max(task.end for task in plan.tasks)
    for ipu, cycles in enumerate(plan.update):
        found.append(Span(kind="update", ipu=ipu, stage=None, micro_batch=None, start=last, end=last + cycles))
    return [span for span in found if span.end - span.start > 1e-6]


def _task_spans(plan: PipelineFigures, task: TimedPass) -> Iterator[Span]:
    """First an IPU receives what it needs, then it computes."""
    stage = plan.stages[task.stage]
    arrives = stage.receive_backward if task.backward else stage.receive_forward
    streams = stage.streaming_backward if task.backward else stage.streaming_forward
    begins = task.start
    for kind, cycles in (("receive", arrives), ("streaming", streams), ("host", task.receive - arrives - streams)):
        yield _span(task, kind, begins, begins + max(0.0, cycles))
        begins += max(0.0, cycles)
    yield _span(task, "backward" if task.backward else "forward", begins, task.end)


def _span(task: TimedPass, kind: str, start: float, end: float) -> Span:
    return Span(kind=kind, ipu=task.ipu, stage=task.stage, micro_batch=task.micro_batch, start=start, end=end)


def windows(plan: PipelineFigures) -> list[tuple[float, float]]:
    """The parts of a step that show how its pipeline fills, runs and drains: from the first cycle to the last.

    One part where little would be left out. A grouped schedule has a third one, where forward passes end and backward
    passes begin.
    """
    first = [task for task in plan.tasks if task.micro_batch < SHOWN]
    last = [task for task in plan.tasks if task.micro_batch >= plan.micro_batches - SHOWN]
    if plan.schedule is Schedule.GROUPED and plan.trains:
        parts = [
            (0.0, _end(t for t in first if not t.backward)),
            (_start(t for t in last if not t.backward), _end(t for t in first if t.backward)),
            (_start(t for t in last if t.backward), plan.cycles),
        ]
    else:
        parts = [(0.0, _end(iter(first))), (_start(iter(last)), plan.cycles)]
    return _joined(parts)


def _joined(parts: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The parts, those together between which there is less than half of what they show."""
    shown = sum(end - start for start, end in parts)
    joined = [parts[0]]
    for start, end in parts[1:]:
        if start - joined[-1][1] < shown / 2:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _start(tasks: Iterator[TimedPass]) -> float:
    return min(task.start for task in tasks)


def _end(tasks: Iterator[TimedPass]) -> float:
    return max(task.end for task in tasks)


def cycles_by_kind(plan: PipelineFigures) -> list[dict[str, float]]:
    """What each IPU spends a step on, in cycles; they add up to the step."""
    table = [dict.fromkeys(KINDS, 0.0) for _ in range(plan.num_ipus)]
    for span in spans(plan):
        table[span.ipu][span.kind] += span.end - span.start
    for of in table:
        of["wait"] = max(0.0, plan.cycles - sum(of.values()))
    return table

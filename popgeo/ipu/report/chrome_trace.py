"""What happens when, as a trace that chrome://tracing and ui.perfetto.dev show."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from popgeo.ipu.cost.plan import Activity
from popgeo.ipu.report.cost_rows import block_names
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.pipeline_figures import PipelineFigures
from popgeo.ipu.target import IpuTarget

_SHOWN = ("op", "module", "phase", "balance", "tiles", "workers", "bytes_in", "bytes_out", "bytes_total")


def trace_of_step(report: Figures) -> str:
    """A process for each block of the model, with a track for each activity; of one micro-batch and its update."""
    steps = report.rows.supersteps
    names = block_names([step["module"] for step in steps])
    used = {(name, step["activity"]) for step, name in zip(steps, names, strict=True)}
    blocks, tracks = list(dict.fromkeys(names)), [activity.value for activity in Activity]
    events = [
        {
            "name": f"{step['op']}: {step['step']}",
            "cat": f"{step['activity']},{step['phase']}",
            "pid": blocks.index(name),
            "tid": tracks.index(step["activity"]),
            "ts": step["start"],
            "dur": step["length"],
            "args": {key: step[key] for key in _SHOWN},
        }
        for step, name in zip(steps, names, strict=True)
    ]
    processes = [(name, {n: a for n, a in enumerate(tracks) if (name, a) in used}) for name in blocks]
    return _trace(processes, events, report.target, profile=report.profile.value)


def trace_of_stages(plan: PipelineFigures) -> str:
    """A process for each IPU, with a track for each of its stages and one for its update."""
    last = len(plan.stages)
    tracks = [{last: "update"} if cycles else dict[int, str]() for cycles in plan.update]
    for number, stage in enumerate(plan.stages):
        tracks[stage.ipu][number] = f"stage {number}: {stage.layers}"
    events = [
        {
            "name": span.kind if span.micro_batch is None else f"{span.kind} {span.micro_batch}",
            "cat": span.kind,
            "pid": span.ipu,
            "tid": last if span.stage is None else span.stage,
            "ts": span.start,
            "dur": span.end - span.start,
            "args": {"micro_batch": span.micro_batch},
        }
        for span in plan.spans
    ]
    processes = [(f"IPU {ipu}", its) for ipu, its in enumerate(tracks)]
    return _trace(processes, events, plan.target, schedule=plan.schedule.value)


def _trace(
    processes: Sequence[tuple[str, Mapping[int, str]]],
    events: Iterable[Mapping[str, Any]],
    target: IpuTarget,
    **about: str,
) -> str:
    """JSON in Chrome's format; times are in microseconds at the target's clock.

    Args:
        processes: The name of each process, with its tracks by number.
        events: What happens: `name`, `cat` (its kind), `pid` (place of its process), `tid` (number of its track),
            `ts` (its start) and `dur` (its length) in cycles, and `args`, what else is shown of it.
        target: Whose cycles they are.
        about: What else the trace says of itself.
    """
    made: list[dict[str, Any]] = []
    for number, (name, tracks) in enumerate(processes):
        made.append(_words(number, 0, "process_name", name=name))
        made.append(_words(number, 0, "process_sort_index", sort_index=number))
        made += [_words(number, track, "thread_name", name=words) for track, words in tracks.items()]
    to_us = 1e6 / target.clock
    for event in events:
        times = {"ts": event["ts"] * to_us, "dur": event["dur"] * to_us}
        made.append({"ph": "X", **event, **times, "args": {"cycles": event["dur"], **event["args"]}})
    others = {"target": target.name, "clock": target.clock, **about}
    return json.dumps({"traceEvents": made, "displayTimeUnit": "ns", "otherData": others})


def _words(process: int, track: int, kind: str, **words: object) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": words}

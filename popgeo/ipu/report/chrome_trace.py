"""The timeline of a step as a trace for chrome://tracing and ui.perfetto.dev."""

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
    """Return the trace of one micro-batch and its update: a process per block, a track per activity."""
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
    """Return the trace of a pipeline: a process per IPU, a track per stage and one for the update."""
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
    """Return JSON in Chrome's format, with times in microseconds at the target's clock.

    Args:
        processes: Name of each process, with its tracks by number.
        events: The events: `name`, `cat` (kind), `pid` (position of the process), `tid` (number of the track), `ts`
            (start in cycles), `dur` (length in cycles) and `args` (further facts).
        target: Machine of the cycles.
        about: Further facts about the trace.
    """
    made: list[dict[str, Any]] = []
    for number, (name, tracks) in enumerate(processes):
        made.append(_metadata(number, 0, "process_name", name=name))
        made.append(_metadata(number, 0, "process_sort_index", sort_index=number))
        made += [_metadata(number, track, "thread_name", name=words) for track, words in tracks.items()]
    to_us = 1e6 / target.clock
    for event in events:
        times = {"ts": event["ts"] * to_us, "dur": event["dur"] * to_us}
        made.append({"ph": "X", **event, **times, "args": {"cycles": event["dur"], **event["args"]}})
    others = {"target": target.name, "clock": target.clock, **about}
    return json.dumps({"traceEvents": made, "displayTimeUnit": "ns", "otherData": others})


def _metadata(process: int, track: int, kind: str, **words: object) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": words}

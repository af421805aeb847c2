"""A step as a trace that chrome://tracing and ui.perfetto.dev show."""

import json
from typing import Any

from popgeo.ipu.cost.plan import Activity
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.rows import block_names

TRACKS = {activity.value: number for number, activity in enumerate(Activity, start=1)}


def chrome_trace(report: Figures) -> str:
    """JSON with one process for each block of the model, and in it a track for each activity.

    Times are those of one micro-batch and its update, in microseconds at the target's clock.
    """
    steps = report.rows.supersteps
    names = block_names([step["module"] for step in steps])
    processes = {name: number for number, name in enumerate(dict.fromkeys(names), start=1)}
    events: list[dict[str, Any]] = []
    for name, process in processes.items():
        events.append({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}})
        events.append(
            {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
        )
        used = {step["activity"] for step, its in zip(steps, names, strict=True) if its == name}
        events += [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": TRACKS[track], "args": {"name": track}}
            for track in TRACKS
            if track in used
        ]
    to_us = 1e6 / report.target.clock
    shown = ("op", "module", "phase", "balance", "tiles", "workers", "bytes_in", "bytes_out", "bytes_total")
    for step, name in zip(steps, names, strict=True):
        events.append(
            {
                "ph": "X",
                "name": f"{step['op']}: {step['step']}",
                "cat": f"{step['activity']},{step['phase']}",
                "ts": step["start"] * to_us,
                "dur": step["length"] * to_us,
                "pid": processes[name],
                "tid": TRACKS[step["activity"]],
                "args": {"cycles": step["length"], **{key: step[key] for key in shown}},
            }
        )
    about = {"target": report.target.name, "clock": report.target.clock, "profile": report.profile.value}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about})

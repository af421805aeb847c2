"""What happens when, as a trace that chrome://tracing and ui.perfetto.dev show."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from popgeo.ipu.target import IpuTarget


@dataclass(frozen=True, kw_only=True)
class TraceEvent:
    """Something that takes time; times are cycles from the start of the step.

    Attributes:
        process: The place of its process in `Trace.processes`.
        track: The number of its track there.
        name: What it is.
        kind: Of what kind it is; kinds have colours.
        start: When it begins.
        length: How long it takes.
        about: What else is shown of it.
    """

    process: int
    track: int
    name: str
    kind: str
    start: float
    length: float
    about: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What happens when in a step.

    Attributes:
        processes: The name of each process, with its tracks by number.
        events: What happens.
        about: What the cycles are those of.
    """

    processes: Sequence[tuple[str, Mapping[int, str]]]
    events: Sequence[TraceEvent]
    about: Mapping[str, str]


def trace_json(trace: Trace, target: IpuTarget) -> str:
    """The trace in Chrome's format; times are in microseconds at the target's clock."""
    events: list[dict[str, Any]] = []
    for number, (name, tracks) in enumerate(trace.processes):
        events.append(_about(number, 0, "process_name", name=name))
        events.append(_about(number, 0, "process_sort_index", sort_index=number))
        events += [_about(number, track, "thread_name", name=words) for track, words in tracks.items()]
    to_us = 1e6 / target.clock
    for event in trace.events:
        events.append(
            {
                "ph": "X",
                "name": event.name,
                "cat": event.kind,
                "ts": event.start * to_us,
                "dur": event.length * to_us,
                "pid": event.process,
                "tid": event.track,
                "args": {"cycles": event.length, **event.about},
            }
        )
    about = {"target": target.name, "clock": target.clock, **trace.about}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about})


def _about(process: int, track: int, kind: str, **words: object) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": words}

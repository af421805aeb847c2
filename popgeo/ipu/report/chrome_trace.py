"""What happens when, as a trace that chrome://tracing and ui.perfetto.dev show."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from popgeo.ipu.target import IpuTarget


def chrome_trace(
    processes: Sequence[tuple[str, Mapping[int, str]]],
    events: Iterable[Mapping[str, Any]],
    target: IpuTarget,
    **about: str,
) -> str:
    """JSON in Chrome's format; times are in microseconds at the target's clock.

    Args:
        processes: The name of each process, with its tracks by number.
        events: What happens: `name`, `cat` (its kind), `pid` (place of its process), `tid` (number of its track),
            `start` and `length` in cycles, and `args`, what else is shown of it.
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
        start, length = event["start"], event["length"]
        shown = {key: value for key, value in event.items() if key not in ("start", "length")}
        args = {"cycles": length, **event["args"]}
        made.append({"ph": "X", **shown, "ts": start * to_us, "dur": length * to_us, "args": args})
    others = {"target": target.name, "clock": target.clock, **about}
    return json.dumps({"traceEvents": made, "displayTimeUnit": "ns", "otherData": others})


def _words(process: int, track: int, kind: str, **words: object) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": words}

"""A pipeline as a trace that chrome://tracing and ui.perfetto.dev show."""

import json
from typing import Any

from popgeo.ipu.systems.pipeline_figures import PipelineFigures
from popgeo.ipu.systems.pipeline_spans import spans


def chrome_trace(plan: PipelineFigures) -> str:
    """JSON with one process for each IPU, and in it a track for each of its stages and one for its update.

    Times are in microseconds at the target's clock.
    """
    events: list[dict[str, Any]] = []
    for ipu in range(plan.num_ipus):
        events.append(_name("process", ipu, 0, f"IPU {ipu}"))
        events.append({"ph": "M", "name": "process_sort_index", "pid": ipu, "tid": 0, "args": {"sort_index": ipu}})
    for number, stage in enumerate(plan.stages):
        events.append(_name("thread", stage.ipu, number, f"stage {number}: {stage.layers}"))
    update = len(plan.stages)
    events += [_name("thread", ipu, update, "update") for ipu, cycles in enumerate(plan.update) if cycles]
    to_us = 1e6 / plan.target.clock
    for span in spans(plan):
        events.append(
            {
                "ph": "X",
                "name": span.kind if span.micro_batch is None else f"{span.kind} {span.micro_batch}",
                "cat": span.kind,
                "ts": span.start * to_us,
                "dur": (span.end - span.start) * to_us,
                "pid": span.ipu,
                "tid": update if span.stage is None else span.stage,
                "args": {"cycles": span.end - span.start, "micro_batch": span.micro_batch},
            }
        )
    about = {"target": plan.target.name, "clock": plan.target.clock, "schedule": plan.schedule.value}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about})


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": f"{kind}_name", "pid": process, "tid": thread, "args": {"name": name}}

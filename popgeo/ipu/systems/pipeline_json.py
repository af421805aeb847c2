"""A pipeline as JSON that other programs, and later versions, can read."""

import json
from dataclasses import fields
from typing import Any

from popgeo.ipu.report.json_format import memory_use, plain
from popgeo.ipu.stage_choices import Schedule
from popgeo.ipu.systems.pipeline_figures import PipelineFigures
from popgeo.ipu.systems.pipeline_insights import Remedy, insights
from popgeo.ipu.systems.pipeline_tables import ipus_of, stages_of
from popgeo.ipu.systems.schedule import Task
from popgeo.ipu.systems.stage import Stage, Transfer
from popgeo.ipu.systems.turns import Turn
from popgeo.ipu.target import IpuTarget

SCHEMA, VERSION = "popgeo.ipu.pipeline", 1
LEFT_OUT = ("again", "told")
DERIVED = ("cycles", "seconds", "micro_batches_per_second", "bubble", "bottleneck", "num_ipus", "fits")


def dumps(plan: PipelineFigures) -> str:
    """The plan with the name and the version of its format, and with numbers and tables that follow from it."""
    kept = {part.name: plain(getattr(plan, part.name)) for part in fields(plan) if part.name not in LEFT_OUT}
    derived = {name: plain(getattr(plan, name)) for name in DERIVED}
    tables = {"table_of_stages": stages_of(plan), "table_of_ipus": ipus_of(plan), "insights": plain(insights(plan))}
    return json.dumps({"schema": SCHEMA, "version": VERSION, **kept, **derived, **tables}, allow_nan=False)


def loads(text: str) -> dict[str, Any]:
    """The fields of the plan behind the text.

    Raises:
        ValueError: it is no plan, or of another version.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"No plan: {error}. Pass what Pipeline.to_json returned.") from error
    found = (content.get("schema"), content.get("version")) if isinstance(content, dict) else (type(content), None)
    if found != (SCHEMA, VERSION):
        raise ValueError(f"No plan of this version: found {found}, expected {(SCHEMA, VERSION)}. Plan it anew.")
    known = {part.name for part in fields(PipelineFigures)}
    given = {name: part for name, part in content.items() if name in known}
    return given | {
        "target": IpuTarget(**given["target"]),
        "schedule": Schedule(given["schedule"]),
        "stages": tuple(map(_stage, given["stages"])),
        "turns": tuple(Turn(**turn) for turn in given["turns"]),
        "update_parts": {name: tuple(cycles) for name, cycles in given["update_parts"].items()},
        "tasks": tuple(Task(**task) for task in given["tasks"]),
        "layers": tuple(map(tuple, given["layers"])),
        "recompute": recompute if isinstance(recompute := given["recompute"], bool) else tuple(recompute),
        "told": tuple(Remedy(**{**item, "ops": tuple(item["ops"])}) for item in content["insights"]),
        **{name: tuple(given[name]) for name in ("update", "extra_bytes", "shared")},
    }


def _stage(content: dict[str, Any]) -> Stage:
    transfers = tuple(Transfer(**transfer) for transfer in content["transfers"])
    return Stage(**{**content, "transfers": transfers, "memory": memory_use(content["memory"])})

"""A report as JSON that other programs, and later versions, can read."""

import json
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from popgeo.capture.operations import OPERATIONS, name_of
from popgeo.ipu.cost.plan import Activity, OpCost, Plan, Profile, Superstep, Validity
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.memory_use import MemoryUse, Resident

SCHEMA, VERSION = "popgeo.ipu.report", 1
DERIVED = ("families", "total_cycles", "microseconds")  # for other programs; reading works them out anew


def dumps(report: Figures) -> str:
    """The report with the name and the version of its format."""
    content = {"schema": SCHEMA, "version": VERSION, **plain(report)}
    content |= {name: plain(getattr(report, name)) for name in DERIVED}
    return json.dumps(content, allow_nan=False)


def loads(text: str) -> dict[str, Any]:
    """The fields of the report behind the text.

    Raises:
        ValueError: it is no report, or of another version.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"No report: {error}. Pass what Report.to_json returned.") from error
    found = (content.get("schema"), content.get("version")) if isinstance(content, dict) else (type(content), None)
    if found != (SCHEMA, VERSION):
        raise ValueError(
            f"No report of this version: found {found}, expected {(SCHEMA, VERSION)}. Compile the step anew."
        )
    known = {field.name for field in fields(Figures)}
    given = {name: part for name, part in content.items() if name in known}
    given |= {
        "target": IpuTarget(**given["target"]),
        "costs": tuple(_op_cost(cost) for cost in given["costs"]),
        "profile": Profile(given["profile"]),
        "memory": None if given["memory"] is None else memory_use(given["memory"]),
        "real_of_slots": {int(slots): real for slots, real in given["real_of_slots"].items()},
    }
    return given


def plain(part: Any) -> Any:
    """The same in what JSON has: dataclasses as their fields, arrays and tuples as lists, members as their values."""
    if is_dataclass(part) and not isinstance(part, type):
        return {field.name: plain(getattr(part, field.name)) for field in fields(part)}
    if isinstance(part, Enum):
        return part.value
    if isinstance(part, np.ndarray | np.generic):
        return part.tolist()
    if isinstance(part, dict):
        return {str(key): plain(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return [plain(item) for item in part]
    return part


def _op_cost(content: dict[str, Any]) -> OpCost:
    plan = _plan(content["plan"])
    row = OPERATIONS.get(name_of(content["target"]))
    family = plan.family if row is None else row.family  # older texts have other words
    return OpCost(**{**content, "plan": replace(plan, family=family)})


def _plan(content: dict[str, Any]) -> Plan:
    steps = tuple(Superstep(**{**step, "activity": Activity(step["activity"])}) for step in content["supersteps"])
    parts, validity = tuple(map(_plan, content["parts"])), Validity(content["validity"])
    return Plan(**{**content, "supersteps": steps, "parts": parts, "validity": validity})


def memory_use(content: dict[str, Any]) -> MemoryUse:
    """What `plain` made of it."""
    arrays = {name: np.array(content[name], dtype=np.int64) for name in ("always_live", "peak", "curve")}
    categories = {name: np.array(bytes_, dtype=np.int64) for name, bytes_ in content["categories"].items()}
    largest = tuple(Resident(**item) for item in content["largest"])
    return MemoryUse(**{**content, **arrays, "categories": categories, "largest": largest})

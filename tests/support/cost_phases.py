"""What the parts of the machine model say on their own: vertices, transfers, searches, plans and rules.

    python -m tests.support.cost_phases

writes `tests/ipu/cost/cost_phases.csv` anew, as `tests.support.cost_table` does for whole programs: run it after a
change that is meant to move modelled cycles, and read the difference.
"""

import csv
import itertools
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.matmul import _Search
from popgeo.ipu.cost.plan import Plan, Superstep
from popgeo.ipu.cost.splits import MEMORY_SHARE, Found
from tests.support import cost_phase_calls, cost_phase_rules
from tests.support.cost_calls import Call

TABLE = Path(__file__).parent.parent / "ipu" / "cost" / "cost_phases.csv"
COLUMNS = ("section", "call", "part", "figures")
CALLS: dict[str, list[Call]] = {**cost_phase_calls.CALLS, **cost_phase_rules.CALLS}

SUMMED = ("sorting", "distances", "gradients of embeddings", "serialized", *cost_phase_rules.CALLS)
FIGURES = (
    "ideal", "calibrated", "mean", "tiles", "workers", "bytes_in", "bytes_out", "bytes_total", "fragments",
)  # fmt: skip

Row = tuple[str, str, str, str]


def rows(section: str) -> Iterator[Row]:
    """What each call of a section returns: a row for each of its parts."""
    for call in CALLS[section]:
        name = f"{call.name}({', '.join(map(_shown, call.args))})"
        found = call.function(*call.args, **call.kwargs)
        for part, figures in _summed(found) if isinstance(found, Plan) and section in SUMMED else _parts(found):
            yield section, name, part, figures
            name = ""  # it stands in the first of its rows


def kept() -> dict[str, list[Row]]:
    """The rows of the committed table, by section."""
    with TABLE.open(newline="") as file:
        found = [(row["section"], row["call"], row["part"], row["figures"]) for row in csv.DictReader(file)]
    return {section: list(group) for section, group in itertools.groupby(found, key=lambda row: row[0])}


def _shown(argument: Any) -> str:
    if isinstance(argument, Machine):
        share = argument.matmul_proportion
        return argument.target.name + ("" if share == MEMORY_SHARE else f" {share:.10g} of its memory")
    if isinstance(argument, IpuTarget):
        return argument.name
    return _text(argument)


def _parts(found: Any) -> Iterator[tuple[str, str]]:
    match found:
        case Plan():
            yield "plan", _whole(found)
            for step in found.supersteps:
                yield from _parts(step)
        case Superstep():
            yield found.name, _named({"": found.activity, **{name: getattr(found, name) for name in FIGURES}})
        case Found() | _Search():
            yield "cuts", _text(found.cuts)
            yield from _parts({"considered": found.considered, **found.terms})
            if isinstance(found, _Search):
                yield "turns", _named({"turns": found.turns, "swapped": found.is_swapped, "cycles": found.cycles})
        case Mapping():
            for name, term in found.items():
                yield str(name), _text(term)
        case list() if found and isinstance(found[0], Superstep):
            for step in found:
                yield from _parts(step)
        case _:
            yield "", _text(found)


def _summed(plan: Plan) -> Iterator[tuple[str, str]]:
    """A plan in one row, with the sums over its supersteps."""
    sums = {name: sum(getattr(step, name) for step in plan.supersteps) for name in FIGURES}
    yield "plan", f"{_whole(plan)} {_named({'steps': len(plan.supersteps), **sums})}"


def _whole(plan: Plan) -> str:
    names = ("temporary_bytes", "flops", "considered")
    figures = {**plan.split, **{name: getattr(plan, name) for name in names}, "parts": len(plan.parts)}
    return _named({"": plan.family, "is": plan.validity, **figures})


def _named(values: Mapping[str, Any]) -> str:
    """All but what is 0 or empty."""
    return " ".join(f"{name} {_text(value)}".strip() for name, value in values.items() if value or not name)


def _text(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float | np.floating):
        return f"{value:.10g}"
    if isinstance(value, list | tuple | np.ndarray):
        return " ".join(map(_text, np.ravel(value) if isinstance(value, np.ndarray) else value))
    return str(value)


def write() -> None:
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for section in CALLS:
            writer.writerows(rows(section))


if __name__ == "__main__":
    write()

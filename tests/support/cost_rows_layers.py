"""Layers, losses, loops and collectives at sizes at which every branch and constant of their cost matters.

    python -m tests.support.cost_rows_layers

writes `tests/ipu/cost/cost_table_layers.csv` anew. Where `cost_table` captures programs, operations are written down
here as they would be captured, one at a time, so that a shape costs no memory and a row hardly any time.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from popgeo.ipu.cost.plan import OpCost, Plan
from tests.support import cost_of_layers, cost_of_passes

TABLE = Path(__file__).parent.parent / "ipu" / "cost" / "cost_table_layers.csv"
NAMES = ("file", "case", "machine", "family", "split", "validity")
FIGURES = (
    "ideal", "calibrated", "mean", "bytes_in", "bytes_out", "bytes_total", "fragments", "tiles", "workers",
    "temporary_bytes", "flops", "considered", "steps", "parts", "bytes",
)  # fmt: skip
FILES = {**cost_of_passes.FILES, **cost_of_layers.FILES}


def rows(file: str) -> Iterator[dict[str, str | float]]:
    """What the model says of each case of a file of `popgeo/ipu/cost`, or of a part of one."""
    for case, machine, found in FILES[file]():
        plan = found.plan if isinstance(found, OpCost) else found
        split = " ".join(f"{name}={parts}" for name, parts in plan.split.items())
        names = (file, case, machine.name, plan.family, split, plan.validity.value)
        yield dict(zip(NAMES, names, strict=True)) | _figures(plan, found.bytes if isinstance(found, OpCost) else 0)


def _figures(plan: Plan, nbytes: int) -> dict[str, float]:
    steps = plan.supersteps
    sums: dict[str, float] = {name: sum(getattr(step, name) for step in steps) for name in FIGURES[:9]}
    whole = {name: getattr(plan, name) for name in FIGURES[9:12]}
    return {**sums, **whole, "steps": len(steps), "parts": len(plan.parts), "bytes": nbytes}


def write(path: Path = TABLE) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*NAMES, *FIGURES), lineterminator="\n")
        writer.writeheader()
        for name in FILES:
            writer.writerows(rows(name))


if __name__ == "__main__":
    write()

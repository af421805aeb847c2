"""The modelled costs of small programs of every family, in several shapes and dtypes.

    python -m tests.support.cost_results

rewrites `tests/ipu/cost/results.csv`. Run it after a change that is meant to change modelled cycles, and read the
difference before the commit: each changed row is a program with changed figures.
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from popgeo import ipu
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.plan import Profile
from tests.support.cost_layers import layers
from tests.support.cost_programs import programs

TABLE = Path(__file__).parent.parent / "ipu" / "cost" / "results.csv"
BOW, GC2, GC200 = IpuTarget.bow(), IpuTarget.gc2(), IpuTarget.gc200()
FEW_TILES = replace(BOW, name="8 tiles", num_tiles=8)
PAIR = replace(BOW, name="two of 16 tiles", num_tiles=16, num_ipus=2)

_ON_OTHERS = {
    GC2: ("product 2048", "gather wide", "sum rows wide", "functions uneven", "reductions uneven", "unknown small"),
    GC200: ("product 16128", "softmax uneven"),
    FEW_TILES: (
        "gather", "sum rows", "product 1000", "product 2048", "copies", "reductions", "sorted", "many products",
    ),
    PAIR: ("gather", "sum rows", "product 1000", "copies", "reductions", "unknown small", "shards"),
}  # fmt: skip


def rows() -> Iterator[dict[str, str]]:
    """Yield the figures of each program's report, by machine."""
    for program, (function, inputs) in (programs() | layers()).items():
        for machine in (BOW, *(m for m, some in _ON_OTHERS.items() if program.startswith(some))):
            report = ipu.compile(function, list(inputs), target=machine, strict=False).report
            plans = [cost.plan for cost in report.costs]
            yield {
                "program": program,
                "machine": machine.name,
                "inputs": " ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in inputs),
                "ideal": f"{sum(plan.cycles(Profile.IDEAL) for plan in plans):.1f}",
                "calibrated": f"{sum(plan.cycles(Profile.CALIBRATED) for plan in plans):.1f}",
                "exchanged": f"{sum(step.bytes_total for plan in plans for step in plan.supersteps)}",
                "flops": f"{sum(plan.flops for plan in plans)}",
                "fullest_tile": f"{report.memory.peak.max()}",
            }


def write(path: Path = TABLE) -> None:
    found = list(rows())
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    write()

"""The inner loop of each kind of element-wise operation, and the cycles that a tile takes for it."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from popgeo.ipu.cost.vertex_cycles import ceil_div
from popgeo.ipu.target import IpuTarget


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The cycles of a worker for one kind of operation, from the estimators of poplibs.

    Attributes:
        start: Cycles before the first element.
        vector: Cycles per vector without load and store, for float32 and float16; empty for a loop over elements.
        element: Cycles per element for float32 and float16; empty for a loop over vectors.
        once: Cycles of the tile before and after its workers.
        flops: Floating-point operations per element.
    """

    start: int
    vector: tuple[int, ...]
    element: tuple[int, ...]
    once: int
    flops: int


_LOAD_STORE = 2
# `also` names further passes with the same cycles: a square costs as much as any single instruction on one operand.
# For `gelu` and its gradient, `vector` counts the instructions of `popnn::NonLinearity1D` and `NonLinearityGrad1D` per
# vector: 12 and 21 with load and store. Two of them are a tanh: one cycle for two float16, five for one float32.
with Path(__file__).with_name("loops.csv").open(newline="", encoding="utf-8") as _file:
    _ROWS = {row["name"]: row for row in csv.DictReader(_file)}


def _loop(row: Mapping[str, str]) -> Loop:
    """Return the loop of a row of the table."""
    vector, element = (tuple(map(int, row[part].split())) for part in ("vector", "element"))
    start, once, flops = (int(row[part]) for part in ("start", "once", "flops"))
    return Loop(start=start, vector=vector, element=element, once=once, flops=flops)


LOOPS = {name: _loop(row) for name, row in _ROWS.items()}
LOOP_OF = {one: name for name, row in _ROWS.items() for one in (name, *filter(None, row["also"].split("; ")))}
"""The loop of each pass of operations: its own loop, or another loop with the same cycles."""

# Operations on numbers of 32 bits have no vectors.
ARITHMETIC = frozenset({"add", "scalar", "maximum", "divide", "add product", "relu", "mix"})


def elementwise_vertex(elements: int, loop: Loop, width: int, target: IpuTarget) -> int:
    """Return the cycles of a tile that shares elements among its workers.

    Args:
        elements: Elements on the tile.
        loop: The cycles of a worker.
        width: Bytes of an element.
        target: The machine.

    Example:
        >>> elementwise_vertex(1024, LOOPS["add"], width=4, target=IpuTarget.bow())
        1733
    """
    workers = target.workers_per_tile
    mine = ceil_div(elements, workers)
    is_half = width == 2
    if not loop.vector:
        return workers * (loop.start + mine * loop.element[is_half]) + loop.once
    per_vector = target.vector_bytes // (2 if is_half else 4)
    cycles = loop.vector[is_half] + _LOAD_STORE
    return workers * (loop.start + ceil_div(mine, per_vector) * cycles) + loop.once

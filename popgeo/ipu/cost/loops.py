"""The inner loop of each kind of element-wise operation, and the cycles that a tile takes for it."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from popgeo.ipu.cost.vertex_cycles import ceil_div
from popgeo.ipu.target import IpuTarget


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a worker does for one kind of operation, from the estimators of poplibs.

    Attributes:
        start: Cycles before its first element.
        vector: Cycles per vector, load and store left out, float32 and float16; empty if it goes one by one.
        element: Cycles per element if it goes one by one, float32 and float16; else empty.
        once: Cycles of the tile around its workers.
        flops: Floating-point operations per element.
    """

    start: int
    vector: tuple[int, ...]
    element: tuple[int, ...]
    once: int
    flops: int


_LOAD_STORE = 2
# `also` are the passes that take as long as a loop: a square, as any operation that is one instruction on one operand.
# Of `gelu` and its gradient, `vector` are the instructions of `popnn::NonLinearity1D` and `NonLinearityGrad1D` for a
# vector: 12 and 21, load and store among them, of which two are a tanh, which takes one cycle for two float16 and five
# for one float32.
with Path(__file__).with_name("loops.csv").open(newline="", encoding="utf-8") as _file:
    _ROWS = {row["name"]: row for row in csv.DictReader(_file)}


def _loop(row: Mapping[str, str]) -> Loop:
    vector, element = (tuple(map(int, row[part].split())) for part in ("vector", "element"))
    start, once, flops = (int(row[part]) for part in ("start", "once", "flops"))
    return Loop(start=start, vector=vector, element=element, once=once, flops=flops)


LOOPS = {name: _loop(row) for name, row in _ROWS.items()}
LOOP_OF = {one: name for name, row in _ROWS.items() for one in (name, *filter(None, row["also"].split("; ")))}
"""The loop of each pass that operations are made of: its own, or one that takes as long."""

# Operations on numbers of 32 bits have no vectors.
ARITHMETIC = frozenset({"add", "scalar", "maximum", "divide", "add product", "relu", "mix"})


def elementwise_vertex(elements: int, loop: Loop, width: int, target: IpuTarget) -> int:
    """Cycles of a tile that shares elements among its workers.

    Args:
        elements: Elements on the tile.
        loop: What a worker does.
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

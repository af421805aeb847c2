"""Operations that work by element: how many elements a tile gets, and what its workers do with them."""

import functools
from dataclasses import dataclass

from popgeo.ipu.codelets.calibration import Machine
from popgeo.ipu.codelets.compute import compute_step, overhead_step
from popgeo.ipu.codelets.exchange import exchange_step, transfer_cycles
from popgeo.ipu.codelets.validity import elementwise_validity
from popgeo.ipu.codelets.vertices import ceil_div
from popgeo.ipu.plan import Plan, Superstep
from popgeo.ipu.target import IpuTarget

GRAIN_BYTES = 128  # a tile takes at least so many bytes of a tensor before the next one gets any


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a worker does for one kind of operation, from the estimators of poplibs.

    Attributes:
        start: Cycles before its first element.
        vector: Cycles per vector, load and store left out, float32 and float16; None where it goes one by one.
        element: Cycles per element where it goes one by one, float32 and float16.
        once: Cycles of the tile around its workers.
        flops: Floating-point operations per element.
    """

    start: int
    vector: tuple[int, int] | None = None
    element: tuple[int, int] = (0, 0)
    once: int = 11
    flops: int = 1


_LOAD_STORE = 2
LOOPS: dict[str, Loop] = {
    "add": Loop(start=29, vector=(1, 1)),
    "scalar": Loop(start=20, vector=(0, 0)),
    "maximum": Loop(start=29, vector=(3, 2)),
    "divide": Loop(start=29, vector=(10, 21)),
    "add product": Loop(start=29, vector=(3, 3), flops=2),
    "add quotient": Loop(start=29, vector=(12, 23), flops=3),
    "mix": Loop(start=23, vector=(3, 3), flops=3, once=60),
    "relu": Loop(start=17, vector=(3, 2), once=20),
    "exp": Loop(start=33, vector=(6, 4), once=20),
    "log": Loop(start=17, vector=(12, 6), once=20),
    "log1p": Loop(start=17, vector=(22, 22), once=20),
    "sqrt": Loop(start=17, vector=(10, 23), once=20),
    "rsqrt": Loop(start=17, vector=(8, 19), once=20),
    "inverse": Loop(start=17, vector=(6, 6), once=20),
    "erf": Loop(start=17, vector=(41, 41), once=20, flops=8),
    "sigmoid product": Loop(start=29, vector=(13, 7), once=20, flops=3),
    "cosine": Loop(start=20, element=(2304, 25), once=0, flops=20),
    "power": Loop(start=20, element=(312, 312), once=0, flops=20),
    "integer": Loop(start=20, element=(7, 7), flops=0),
    "select": Loop(start=20, element=(5, 5), flops=0),
    "cast": Loop(start=37, vector=(0, 0), flops=0),
    "random": Loop(start=29, vector=(10, 10), flops=0),
}  # fmt: skip


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
    if loop.vector is None:
        return workers * (loop.start + mine * loop.element[is_half]) + loop.once
    per_vector = target.vector_bytes // (2 if is_half else 4)
    cycles = loop.vector[is_half] + _LOAD_STORE
    return workers * (loop.start + ceil_div(mine, per_vector) * cycles) + loop.once


def spread(elements: int, width: int, num_tiles: int) -> tuple[int, int]:
    """Elements on the fullest tile and tiles at work, for a tensor that lies in order with poplar's grain.

    Example:
        >>> spread(32, width=4, num_tiles=1472), spread(3200, 4, 1472), spread(147200, 4, 1472)
        ((32, 1), (32, 100), (100, 1472))
    """
    grain = GRAIN_BYTES // max(1, width)
    most = min(max(1, elements), max(grain, ceil_div(elements, num_tiles)))
    return most, ceil_div(max(1, elements), most)


@functools.lru_cache(maxsize=8192)
def plan_elementwise(kind: str, elements: int, width: int, machine: Machine, operand: int = 0) -> Plan:
    """An operation by element on tensors that lie alike, in order over the tiles.

    Args:
        kind: Which of `LOOPS`.
        elements: Elements of the result.
        width: Bytes of an element.
        machine: What to plan for.
        operand: Elements of a smaller operand that is broadcast; its part goes to each tile first. 0 for none.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> plan = plan_elementwise("cosine", 32, 4, Machine(target=IpuTarget.bow()))
        >>> dict(plan.split), plan.supersteps[-1].ideal
        ({'tiles': 1}, 83146.0)
    """
    target, constants, loop = machine.target, machine.calibration, LOOPS[kind]
    most, tiles = spread(elements, width, machine.num_tiles)
    steps: list[Superstep] = [overhead_step("start", calibrated=constants.elementwise_fixed, tiles=tiles)]
    if operand > 1:
        nbytes = min(operand, most) * width
        transfer = transfer_cycles(target, bytes_in=nbytes, bytes_out=nbytes)
        steps.append(
            exchange_step(
                "bring smaller operand", target, transfer=transfer, bytes_in=nbytes, bytes_out=nbytes, tiles=tiles
            )
        )
    layout = constants.elementwise_layout * elements / machine.num_tiles
    evenness = elements / (tiles * most)
    steps += [
        overhead_step("lay out operands and result", calibrated=layout, tiles=tiles, is_sync=False),
        compute_step(
            kind, target, vertex=elementwise_vertex(most, loop, width, target), tiles=tiles,
            workers=min(target.workers_per_tile, most),
            evenness=evenness,
        ),
    ]  # fmt: skip
    validity, why = elementwise_validity(kind, elements, width, machine)
    return Plan(
        family="elementwise",
        split={"tiles": tiles},
        supersteps=tuple(steps),
        flops=loop.flops * elements,
        validity=validity,
        why=why,
    )

"""The inner loop of each kind of element-wise operation, and the cycles that a tile takes for it."""

from dataclasses import dataclass

from popgeo.ipu.cost.vertex_cycles import ceil_div
from popgeo.ipu.target import IpuTarget


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a worker does for one kind of operation, from the estimators of poplibs.

    Attributes:
        start: Cycles before its first element.
        vector: Cycles per vector, load and store left out, float32 and float16; None if it goes one by one.
        element: Cycles per element if it goes one by one, float32 and float16.
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
    # The instructions of `popnn::NonLinearity1D` and `NonLinearityGrad1D` for a vector, its load and its store among
    # them: 12 and 21, of which two are a tanh, which takes one cycle for two float16 and five for one float32.
    "gelu": Loop(start=26, vector=(18, 10), once=9, flops=8),
    "gelu gradient": Loop(start=29, vector=(27, 19), once=9, flops=15),
    "sigmoid product": Loop(start=29, vector=(13, 7), once=20, flops=3),
    "cosine": Loop(start=20, element=(2304, 25), once=0, flops=20),
    "power": Loop(start=20, element=(312, 312), once=0, flops=20),
    "integer": Loop(start=20, element=(7, 7), flops=0),
    "select": Loop(start=20, element=(5, 5), flops=0),
    "cast": Loop(start=37, vector=(0, 0), flops=0),
    "random": Loop(start=29, vector=(10, 10), flops=0),
}  # fmt: skip
# What takes as long as another: a square, as any operation that is one instruction on one operand.
_AS_LONG_AS = {
    "add": ("subtract", "multiply"),
    "relu": ("square", "abs", "negate", "sign"),
    "log": ("tanh",),
    "add product": ("cube",),
}
LOOP_OF = {name: name for name in LOOPS} | {name: loop for loop, names in _AS_LONG_AS.items() for name in names}
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
    if loop.vector is None:
        return workers * (loop.start + mine * loop.element[is_half]) + loop.once
    per_vector = target.vector_bytes // (2 if is_half else 4)
    cycles = loop.vector[is_half] + _LOAD_STORE
    return workers * (loop.start + ceil_div(mine, per_vector) * cycles) + loop.once

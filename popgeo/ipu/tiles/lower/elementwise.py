"""Lowers element-wise operations: each tile computes the elements of the result that it holds."""

from typing import Any

import numpy as np

from popgeo.capture.op_graph import Number, Op, substitute
from popgeo.ipu.tiles.lower.builder import Lowering, Scope, flat
from popgeo.ipu.tiles.steps import Operand, Region, Scalar

_LAYOUT_ONLY = ("memory_format", "layout", "device", "pin_memory", "non_blocking")
NUMBERS = "numbers"


def lowering_of(scope: Scope, op: Op) -> Lowering | None:
    """Return the lowering of an element-wise operation; None if its operands do not broadcast to the result."""
    if len(op.outputs) != 1 or op.outputs[0] is None or not op.reads():
        return None
    shape = scope.graph.values[op.outputs[0]].shape
    fits = all(_broadcasts(scope.graph.values[v].shape, shape) for v in op.reads())
    return _lower if fits else None


def _lower(scope: Scope, op: Op) -> None:
    """Add one compute set on the tiles of the result."""
    out = scope.region(op.outputs[0])
    reads, arguments, keywords = operands(scope, op)
    whole = [region if not region.elements.ndim else _spread(region, out.elements.shape) for region in reads]

    def work(tile: int, where: np.ndarray) -> tuple[list[Region], tuple[Any, ...]]:
        return [flat(region, where) if region.elements.ndim else region for region in whole], arguments

    scope.compute(scope.label, op.target, out, work, keywords)


def operands(
    scope: Scope, op: Op, in_memory_order: bool = False
) -> tuple[list[Region], tuple[Any, ...], dict[str, Any]]:
    """Return the regions that an operation reads, and its arguments with an `Operand` or `Scalar` for each region.

    Args:
        scope: The scope of the operation.
        op: The operation.
        in_memory_order: Whether a vertex gets each tensor with its dimensions in the order of the engine's memory.
    """
    reads: list[Region] = []

    def place(v: int) -> Operand:
        """Add the region of a tensor and return its operand."""
        region, strides = scope.region(v), scope.graph.values[v].stride
        order = sorted(range(len(strides)), key=lambda d: -strides[d]) if in_memory_order else range(len(strides))
        reads.append(Region(variable=region.variable, elements=region.elements.transpose(order)))
        return Operand(len(reads) - 1, tuple(np.argsort(order).tolist()) if in_memory_order else None)

    def number(argument: Any) -> Any:
        """Return an argument; a number of the host is read as a `Scalar`."""
        if not isinstance(argument, Number):
            return argument
        reads.append(Region(variable=scope.builder.numbers, elements=np.array(argument.slot)))
        return Scalar(len(reads) - 1)

    arguments = tuple(number(substitute(argument, place)) for argument in op.args)
    keywords = {key: number(substitute(one, place)) for key, one in op.kwargs.items() if key not in _LAYOUT_ONLY}
    return reads, arguments, keywords


def add(scope: Scope, out: Region, x: Region, y: Region, beta: float = 1, alpha: float = 1) -> None:
    """Add a compute set for out = beta * x + alpha * y on the tiles of the result; `x` may be broadcast."""
    of_two(scope, "add", "weighted sum", out, x, y, beta, alpha)


def of_two(scope: Scope, name: str, operation: str, out: Region, x: Region, y: Region, *numbers: float) -> None:
    """Add a compute set for an operation on two regions and further numbers, on the tiles of the result."""
    spread, y = _spread(x, out.elements.shape), _spread(y, out.elements.shape)
    arguments = (Operand(0), Operand(1), *numbers)
    scope.compute(
        f"{scope.label}: {name}", operation, out, lambda tile, where: ([flat(spread, where), flat(y, where)], arguments)
    )


def _spread(region: Region, shape: tuple[int, ...]) -> Region:
    """Return a region's elements for each element of a result, in row-major order."""
    return Region(variable=region.variable, elements=np.broadcast_to(region.elements, shape).ravel())


def _broadcasts(operand: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Check whether an operand broadcasts to a shape."""
    sizes = zip(reversed(operand), reversed(shape), strict=False)
    return len(operand) <= len(shape) and all(own in (1, size) for own, size in sizes)

"""Distances between all rows of two matrices: a tile takes rows of the first and all of the second."""

from popgeo.capture.op_graph import Op
from popgeo.capture.operations import name_of
from popgeo.ipu.tiles.lower.builder import Scope
from popgeo.ipu.tiles.lower.elementwise import operands
from popgeo.ipu.tiles.lower.in_parts import in_parts, rows_for_tiles


def divides(scope: Scope, op: Op) -> bool:
    """Whether two plain matrices are measured against each other, not batches of them."""
    return all(len(scope.value(v).shape) == 2 for v in op.reads())


def lower_distances(scope: Scope, op: Op) -> None:
    """Of (x1, x2, ...) a tile takes rows of x1, of (grad, x1, x2, p, distances) rows of all but x2."""
    given, arguments, _ = operands(scope, op)
    out = scope.region(op.outputs[0])
    second = 2 if name_of(op.target) == "aten._cdist_backward" else 1
    parts = rows_for_tiles(scope, out.elements.shape[0])
    in_parts(scope, op.target, given, [out], parts, arguments, whole=(second,))

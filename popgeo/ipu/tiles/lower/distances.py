"""Lowers distances between all rows of two matrices: a tile takes some rows of the first and all of the second."""

from popgeo.capture.op_graph import Op
from popgeo.capture.operations import name_of
from popgeo.ipu.tiles.lower.builder import Scope
from popgeo.ipu.tiles.lower.in_parts import by_rows


def divides(scope: Scope, op: Op) -> bool:
    """Check whether the operands are plain matrices and no batches of matrices."""
    return all(len(scope.graph.values[v].shape) == 2 for v in op.reads())


def lower_distances(scope: Scope, op: Op) -> None:
    """Lower distances (x1, x2, ...) by rows of x1, and their gradient (grad, x1, x2, p, distances).

    Each tile of the gradient takes rows of all operands but x2.
    """
    second = 2 if name_of(op.target) == "aten._cdist_backward" else 1
    by_rows(scope, op, whole=(second,))

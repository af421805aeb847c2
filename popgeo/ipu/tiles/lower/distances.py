"""Distances between all rows of two matrices: a tile takes rows of the first and all of the second."""

import numpy as np

from popgeo.capture.op_graph import Op, Ref
from popgeo.ipu.tiles.lower.builder import Scope, part
from popgeo.ipu.tiles.lower.matmul import cuts
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.program import Operand, Vertex

_FORWARD = ("aten._cdist_forward.default", "aten._euclidean_dist.default")  # (x1, x2, ...): rows of x1
_BACKWARD = "aten._cdist_backward.default"  # (grad, x1, x2, p, distances): rows of all but x2


def is_distance(scope: Scope, op: Op) -> bool:
    """Whether an operation measures two plain matrices against each other."""
    known = op.target in _FORWARD or op.target == _BACKWARD
    return known and all(len(scope.value(v).shape) == 2 for v in op.reads())


def lower_distance(scope: Scope, op: Op) -> None:
    """One compute set, and a copy to where the result lies."""
    (made,) = op.outputs
    assert made is not None
    builder, out = scope.builder, scope.region(made)
    regions = [scope.region(v) for v in op.reads()]
    divided = (0, 1, 3) if op.target == _BACKWARD else (0,)
    order = iter(range(len(regions)))
    arguments = tuple(Operand(next(order)) if isinstance(arg, Ref) else arg for arg in op.args)
    row_cuts = cuts(out.elements.shape[0], builder.num_tiles)
    at = np.zeros(out.elements.shape, np.int32)
    for tile, some in enumerate(row_cuts):
        at[some] = tile
    here = out if (builder.holders(out) == at).all() else builder.partial(scope.label, builder.dtype(out), at)
    builder.compute(
        scope.label,
        [
            Vertex(
                tile=tile,
                operation=op.target,
                reads=tuple(part(r, some) if k in divided else r for k, r in enumerate(regions)),
                writes=(part(here, some),),
                arguments=arguments,
            )
            for tile, some in enumerate(row_cuts)
            if out.elements.size
        ],
    )
    if here is not out:
        copy(scope, out, here)

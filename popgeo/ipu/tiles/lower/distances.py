"""Distances between all rows of two matrices: a tile takes rows of the first and all of the second."""

import numpy as np

from popgeo.capture.op_graph import Op, Ref
from popgeo.capture.operations import name_of
from popgeo.ipu.tiles.lower.builder import Lowering, Scope, cuts, part
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.steps import Operand, Vertex


def lowering_of(scope: Scope, op: Op) -> Lowering | None:
    """How two plain matrices are measured against each other; None for batches of them."""
    return _lower if all(len(scope.value(v).shape) == 2 for v in op.reads()) else None


def _lower(scope: Scope, op: Op) -> None:
    """One compute set, and a copy to where the result lies."""
    (made,) = op.outputs
    assert made is not None
    builder, out = scope.builder, scope.region(made)
    regions = [scope.region(v) for v in op.reads()]
    # Of (x1, x2, ...) rows of x1, of (grad, x1, x2, p, distances) rows of all but x2.
    divided = (0, 1, 3) if name_of(op.target) == "aten._cdist_backward" else (0,)
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

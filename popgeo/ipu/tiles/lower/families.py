"""Which lowering knows which operation."""

from popgeo.capture.op_graph import Op
from popgeo.ipu.tiles.lower import indexed, norms
from popgeo.ipu.tiles.lower.builder import Scope
from popgeo.ipu.tiles.lower.distances import is_distance, lower_distance
from popgeo.ipu.tiles.lower.elementwise import is_elementwise, lower_elementwise
from popgeo.ipu.tiles.lower.fallback import lower_on_one_tile
from popgeo.ipu.tiles.lower.matmul import is_matmul, lower_matmul
from popgeo.ipu.tiles.lower.movement import is_fill, is_move, lower_arange, lower_fill, lower_move
from popgeo.ipu.tiles.lower.reduce import is_reduction, lower_reduction
from popgeo.ipu.tiles.lower.slices import is_sliced, lower_sliced


def lower(scope: Scope, op: Op) -> bool:
    """Adds an operation's steps; False where no lowering knows it and it runs on one tile."""
    name = op.target.split(".")[1]
    own = indexed.lowering_of(scope, op) or norms.lowering_of(op)
    if own is not None:
        own(scope, op)
    elif is_fill(op):
        lower_fill(scope, op)
    elif name == "arange":
        lower_arange(scope, op)
    elif name == "copy_":
        lower_elementwise(scope, op)
    elif is_matmul(op):
        lower_matmul(scope, op)
    elif is_reduction(op):
        lower_reduction(scope, op)
    elif is_distance(scope, op):
        lower_distance(scope, op)
    elif is_move(op):
        lower_move(scope, op)
    elif is_sliced(scope, op):
        lower_sliced(scope, op)
    elif is_elementwise(scope, op):
        lower_elementwise(scope, op)
    else:
        lower_on_one_tile(scope, op)
        return False
    return True

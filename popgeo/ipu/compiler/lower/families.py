"""Which lowering knows which operation."""

from popgeo.ipu.compiler.lower import indexed, norms
from popgeo.ipu.compiler.lower.builder import Scope
from popgeo.ipu.compiler.lower.elementwise import is_elementwise, lower_elementwise
from popgeo.ipu.compiler.lower.fallback import lower_on_one_tile
from popgeo.ipu.compiler.lower.matmul import is_matmul, lower_matmul
from popgeo.ipu.compiler.lower.movement import MOVES, is_fill, lower_arange, lower_fill, lower_move
from popgeo.ipu.compiler.lower.reduce import is_reduction, lower_reduction
from popgeo.ipu.compiler.lower.slices import is_sliced, lower_sliced
from popgeo.ipu.op_graph import Op


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
    elif name in MOVES:
        lower_move(scope, op)
    elif is_sliced(scope, op):
        lower_sliced(scope, op)
    elif is_elementwise(scope, op):
        lower_elementwise(scope, op)
    else:
        lower_on_one_tile(scope, op)
        return False
    return True

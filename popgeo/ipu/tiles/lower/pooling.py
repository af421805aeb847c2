"""Windows of pictures: a tile takes samples, which are independent of each other."""

from popgeo.capture.op_graph import Op
from popgeo.ipu.tiles.lower.builder import Lowering, Scope
from popgeo.ipu.tiles.lower.convolution import by_sample


def lowering_of(scope: Scope, op: Op) -> Lowering:
    """How windows are lowered."""
    return _lower


def _lower(scope: Scope, op: Op) -> None:
    by_sample(scope, op, cut=len(op.reads()))

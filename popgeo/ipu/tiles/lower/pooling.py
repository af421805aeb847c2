"""Windows of pictures: a tile takes samples, which are independent of each other."""

from popgeo.capture.op_graph import Op
from popgeo.ipu.cost.plan import FAMILY_OF, name_of
from popgeo.ipu.tiles.lower.builder import Lowering, Scope
from popgeo.ipu.tiles.lower.convolution import by_sample

OPERATIONS = frozenset(name for name, family in FAMILY_OF.items() if family == "pooling")


def lowering_of(scope: Scope, op: Op) -> Lowering | None:
    """How windows are lowered; None for what has none."""
    return _lower if name_of(op.target) in OPERATIONS else None


def _lower(scope: Scope, op: Op) -> None:
    by_sample(scope, op, cut=len(op.reads()))

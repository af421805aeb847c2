"""Lowers pooling of images: a tile takes samples, which are independent of each other."""

from popgeo.capture.op_graph import Op
from popgeo.ipu.tiles.lower.builder import Scope
from popgeo.ipu.tiles.lower.in_parts import by_rows


def lower_pooling(scope: Scope, op: Op) -> None:
    """Lower a pooling; a tile takes samples of all operands."""
    by_rows(scope, op)

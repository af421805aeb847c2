"""Sorts and searches for the largest: each row by itself, on the tile that holds its first result."""

from popgeo.capture.op_graph import Op
from popgeo.ipu.tiles.lower import slices
from popgeo.ipu.tiles.lower.builder import Lowering, Scope

OPERATIONS = frozenset({"aten.sort", "aten.argsort", "aten.topk", "aten.kthvalue"})


def lowering_of(scope: Scope, op: Op) -> Lowering | None:
    """How rows are sorted; None where a row is searched for what another tensor holds."""
    return slices.lowering_of(scope, op, OPERATIONS)

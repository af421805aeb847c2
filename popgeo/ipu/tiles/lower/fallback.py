"""The conservative rule: all operands go to one tile, the operation runs there, and its results go where they lie."""

import numpy as np

from popgeo.capture.op_graph import Op
from popgeo.ipu.tiles.lower.builder import Scope
from popgeo.ipu.tiles.lower.elementwise import operands
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.program import Operand, Vertex

TILE = 0


def lower_on_one_tile(scope: Scope, op: Op) -> None:
    """One compute set on one tile, and copies of what it made and changed."""
    builder = scope.builder
    reads, arguments, keywords = operands(scope, op)
    fresh = [v for v in op.outputs if v is not None and v not in op.reads()]
    changed = [Operand(op.reads().index(v)) for v in dict.fromkeys(op.writes)]
    places = [scope.region(v) for v in (*fresh, *dict.fromkeys(op.writes))]
    here = [
        builder.partial(scope.label, builder.dtype(place), np.full(place.elements.shape, TILE, np.int32))
        for place in places
    ]
    kept = tuple(v is not None and v not in op.reads() for v in op.outputs)
    vertex = Vertex(
        tile=TILE,
        operation="call",
        reads=tuple(reads),
        writes=tuple(here),
        arguments=(op.target, arguments, kept, changed, *keywords.items()),
    )
    builder.compute(f"{scope.label} on one tile", [vertex])
    for place, made in zip(places, here, strict=True):
        copy(scope, place, made)

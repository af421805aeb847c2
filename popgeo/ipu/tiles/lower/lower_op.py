"""Chooses the lowering of an operation: a division from the table of operations, or one tile for all."""

import importlib
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch

from popgeo.capture.op_graph import Op, append_parts, overload
from popgeo.capture.operations import OPERATIONS, UNKNOWN, Division, Operation, operation_of
from popgeo.capture.passes import is_random
from popgeo.ipu.tiles.lower import elementwise, movement, sorting
from popgeo.ipu.tiles.lower.builder import Lowering, Scope
from popgeo.ipu.tiles.lower.elementwise import operands
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.steps import Operand, Vertex

Choice = Callable[[Scope, Op], Lowering | None]
"""A function that returns the lowering of an operation; None if this way does not divide it."""

TILE = 0


def own_lowering(row: Operation) -> tuple[Callable[[Scope, Op], bool], Lowering]:
    """Return the check and the lowering that a row names, from the file of its family."""
    file = importlib.import_module(f"{__package__}.{row.file}")
    return getattr(file, "divides", lambda scope, op: True), getattr(file, f"lower_{row.lowering}")


def _own(scope: Scope, op: Op) -> Lowering | None:
    """Return the lowering of an operation's family, if it divides the operation."""
    divides, lowering = own_lowering(operation_of(op.target))
    return lowering if divides(scope, op) else None


_DIVISIONS: Mapping[Division, Choice] = {
    Division.ELEMENT: elementwise.lowering_of,
    Division.PATTERN: lambda scope, op: movement.lower_pattern,
    Division.SLICES: sorting.lowering_of,
    Division.OWN: _own,
    Division.WHOLE: lambda scope, op: None,
}
FALLBACKS = frozenset(row.name for row in OPERATIONS.values() if row.divisions == (Division.WHOLE,))
"""Operations without any division: `TileExact` runs them on one tile."""


def lower(scope: Scope, op: Op) -> bool:
    """Add the steps of an operation; return False if no lowering divides it, so that it runs on one tile."""
    made = [scope.graph.values[v] for v in (*op.makes(), *op.writes)]
    if made and not any(value.nbytes for value in made):
        return True
    known = lowering_of(scope, op)
    (known or _on_one_tile)(scope, op)
    return known is not None


def lowering_of(scope: Scope, op: Op) -> Lowering | None:
    """Return the lowering that divides an operation over the tiles; None if no lowering does."""
    operation = operation_of(op.target)
    if operation.family == UNKNOWN and not operation.divisions:
        return _as_torch_describes(scope, op)
    shapes = [scope.graph.values[v].shape for v in op.reads()]
    # Without rows there is nothing to divide: an operand is empty, or rows of a scalar are indexed.
    has_rows = all(map(math.prod, shapes)) and not (operation.family in ("gather", "scatter") and shapes[0] == ())
    divisions = (one for one in operation.divisions if has_rows or one in (Division.ELEMENT, Division.PATTERN))
    found = (_DIVISIONS[division](scope, op) for division in divisions)
    return next((lowering for lowering in found if lowering is not None), None)


def _as_torch_describes(scope: Scope, op: Op) -> Lowering | None:
    """Return the lowering of an operation outside of the table: a copy of a view, or an element-wise lowering."""
    described = overload(op.target)
    returns = described._schema.returns  # type: ignore[attr-defined]
    if [item.alias_info is not None and not item.alias_info.is_write for item in returns] == [True]:
        return movement.lower_pattern
    tags = described.tags  # type: ignore[attr-defined]
    by_element = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    return elementwise.lowering_of(scope, op) if by_element else None


def _on_one_tile(scope: Scope, op: Op) -> None:
    """Run an operation on one tile: all operands go there, and its results go to their places."""
    builder = scope.builder
    # Random numbers are drawn in the order of memory.
    reads, arguments, keywords = operands(scope, op, in_memory_order=is_random(op))
    given: list[Operand] = []
    append_parts(Operand, (*arguments, *keywords.values()), given)
    fresh = [v for v in op.outputs if v is not None and v not in op.reads()]
    changed = [given[op.reads().index(v)] for v in dict.fromkeys(op.writes)]
    places = [scope.region(v) for v in (*fresh, *dict.fromkeys(op.writes))]
    here = [builder.partial(scope.label, builder.dtype(r), np.full(r.elements.shape, TILE, np.int32)) for r in places]
    kept = tuple(v is not None and v not in op.reads() for v in op.outputs)
    call = op.target, arguments, kept, changed, *keywords.items()
    vertex = Vertex(tile=TILE, operation="call", reads=tuple(reads), writes=tuple(here), arguments=call)
    builder.compute(f"{scope.label} on one tile", [vertex])
    for place, made in zip(places, here, strict=True):
        copy(scope, place, made)

"""Operations of torch that tiles run on parts of the operands, since the parts are independent of each other."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from popgeo.capture.op_graph import Op
from popgeo.ipu.tiles.lower.builder import Scope, cuts, part
from popgeo.ipu.tiles.lower.elementwise import operands
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.lower.reduce import combine_partials
from popgeo.ipu.tiles.steps import Region, Vertex

StructureParts = Mapping[int, tuple[Any, ...]]
"""For each tile at work, how the leading dimensions are indexed to get its part."""


def rows_for_tiles(scope: Scope, rows: int) -> StructureParts:
    """As many rows for each tile as for any other, as far as there are rows."""
    return {tile: (some,) for tile, some in enumerate(cuts(rows, scope.builder.num_tiles))}


def in_parts(
    scope: Scope,
    operation: str,
    given: Sequence[Region],
    results: Sequence[Region | None],
    parts: StructureParts,
    arguments: Mapping[int, tuple[Any, ...]] | tuple[Any, ...],
    *,
    keywords: Mapping[str, Any] | None = None,
    whole: Collection[int] = (),
    summed: Collection[int] = (),
    dim: int = 0,
) -> None:
    """One compute set: each tile works on its part of the operands and makes that part of the results.

    Results that lie otherwise are copied to their places afterwards.

    Args:
        scope: The operation to lower, with its operands.
        operation: What a vertex computes.
        given: The operands.
        results: What to make, as `operation` returns it; None for an unused result.
        parts: Which part each tile takes.
        arguments: Of a vertex; by tile if they differ.
        keywords: Of a vertex.
        whole: Operands, by position, that every tile takes all of.
        summed: Results, by position, that every tile makes a part of each element of; these are added up.
        dim: The dimension that is indexed first, of operands and results with more than one.
    """
    builder, named = scope.builder, keywords or {}
    if not given[0].elements.size:
        return

    def place(region: Region, tile: int, is_summed: bool = False) -> tuple[Any, ...]:
        return (tile,) if is_summed else (*(slice(None),) * (dim if region.elements.ndim > 1 else 0), *parts[tile])

    def home(result: Region, is_summed: bool) -> Region:
        """The result itself if it lies as the tiles make it, else a partial result that does."""
        at = np.zeros((len(parts), *result.elements.shape) if is_summed else result.elements.shape, np.int32)
        for tile in parts:
            at[place(result, tile, is_summed)] = tile
        lies_right = not is_summed and bool((builder.holders(result) == at).all())
        return result if lies_right else builder.partial(scope.label, builder.dtype(result), at)

    made = [None if result is None else home(result, number in summed) for number, result in enumerate(results)]

    def vertex(tile: int) -> Vertex:
        reads = tuple(r if k in whole else part(r, *place(r, tile)) for k, r in enumerate(given))
        writes = tuple(None if r is None else part(r, *place(r, tile, k in summed)) for k, r in enumerate(made))
        own = arguments[tile] if isinstance(arguments, Mapping) else arguments
        return Vertex(tile=tile, operation=operation, reads=reads, writes=writes, arguments=own, keywords=named)

    builder.compute(scope.label, map(vertex, parts))
    for number, (result, here) in enumerate(zip(results, made, strict=True)):
        if result is None or here is None or here is result:
            continue
        if number in summed:
            elements = np.arange(result.elements.size).reshape(result.elements.shape)
            combine_partials(scope, result, here, np.broadcast_to(elements, here.elements.shape), "sum")
        else:
            copy(scope, result, here)


def by_rows(scope: Scope, op: Op, whole: Collection[int] = (), summed: Collection[int] = ()) -> None:
    """Each tile works on some rows of the operands, such as samples of pictures, and makes these rows of the results.

    Args:
        scope: The operation's.
        op: The operation.
        whole: Operands, by position, that have no such rows; they go to every tile.
        summed: Results, by position, that have none: the parts of the tiles are added up.
    """
    given, arguments, _ = operands(scope, op)
    results = [None if v is None else scope.region(v) for v in op.outputs]
    parts = rows_for_tiles(scope, given[0].elements.shape[0])
    of_tiles = {tile: _for_rows(op, arguments, some.stop - some.start) for tile, (some,) in parts.items()}
    in_parts(scope, op.target, given, results, parts, of_tiles, whole=whole, summed=summed)


def _for_rows(op: Op, arguments: tuple[Any, ...], rows: int) -> tuple[Any, ...]:
    """Gradients of enlarged pictures receive the size of the original, samples included."""
    if not (op.target.startswith("aten.upsample") and "_backward" in op.target):
        return arguments
    return (*arguments[:2], [rows, *op.args[2][1:]], *arguments[3:])

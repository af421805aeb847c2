"""Lowers operations of torch that tiles run on independent parts of their operands."""

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
"""The index of the leading dimensions that gives the part of each tile at work."""


def rows_for_tiles(scope: Scope, rows: int) -> StructureParts:
    """Return equally many rows for each tile, as long as there are rows."""
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
    """Add a compute set; each tile makes its part of the results from its part of the operands.

    Results with another mapping are copied to their places afterwards.

    Args:
        scope: The scope of the operation.
        operation: Operation of a vertex.
        given: Operands.
        results: Regions of the results of `operation`; None for an unused result.
        parts: Part of each tile.
        arguments: Arguments of a vertex, or of the vertex of each tile.
        keywords: Keyword arguments of a vertex.
        whole: Positions of the operands that every tile takes whole.
        summed: Positions of the results for which every tile makes a summand; the summands are added up.
        dim: First indexed dimension of operands and results with several dimensions.
    """
    builder, named = scope.builder, keywords or {}
    if not given[0].elements.size:
        return

    def place(region: Region, tile: int, is_summed: bool = False) -> tuple[Any, ...]:
        """Return the index of a tile's part of a region."""
        return (tile,) if is_summed else (*(slice(None),) * (dim if region.elements.ndim > 1 else 0), *parts[tile])

    def home(result: Region, is_summed: bool) -> Region:
        """Return the result itself if each tile holds the part that it makes; otherwise a partial result."""
        at = np.zeros((len(parts), *result.elements.shape) if is_summed else result.elements.shape, np.int32)
        for tile in parts:
            at[place(result, tile, is_summed)] = tile
        lies_right = not is_summed and bool((builder.holders(result) == at).all())
        return result if lies_right else builder.partial(scope.label, builder.dtype(result), at)

    made = [None if result is None else home(result, number in summed) for number, result in enumerate(results)]

    def vertex(tile: int) -> Vertex:
        """Return the vertex of a tile."""
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


def by_rows(scope: Scope, op: Op, whole: Collection[int] = (), summed: Collection[int] = (), *, dim: int = 0) -> None:
    """Add a compute set; each tile takes some rows of the operands, such as samples of images.

    Args:
        scope: The scope of the operation.
        op: The operation.
        whole: Positions of the operands without such rows, which go to every tile.
        summed: Positions of the results without such rows, which are summed over the tiles.
        dim: Dimension of these rows in operands and results.
    """
    given, arguments, _ = operands(scope, op)
    results = [None if v is None else scope.region(v) for v in op.outputs]
    parts = rows_for_tiles(scope, given[0].elements.shape[dim])
    of_tiles = {tile: _for_rows(op, arguments, some.stop - some.start) for tile, (some,) in parts.items()}
    in_parts(scope, op.target, given, results, parts, of_tiles, whole=whole, summed=summed, dim=dim)


def _for_rows(op: Op, arguments: tuple[Any, ...], rows: int) -> tuple[Any, ...]:
    """Return the arguments of a vertex; the gradient of an upsampling needs its number of samples."""
    if not (op.target.startswith("aten.upsample") and "_backward" in op.target):
        return arguments
    return (*arguments[:2], [rows, *op.args[2][1:]], *arguments[3:])

"""Lowers sorts and other operations along dimensions: a tile computes whole slices."""

import math
from typing import Any

from popgeo.capture.op_graph import Op, overload
from popgeo.capture.schemas import position_of
from popgeo.ipu.tiles.lower.builder import Lowering, Scope, grouped, reshaped
from popgeo.ipu.tiles.lower.elementwise import operands
from popgeo.ipu.tiles.lower.in_parts import in_parts
from popgeo.ipu.tiles.lower.reduce import dims_of
from popgeo.ipu.tiles.steps import Region


def lowering_of(scope: Scope, op: Op) -> Lowering | None:
    """Return the lowering of slices along an operation's dimensions; None if slices depend on each other."""
    if not op.reads() or (op.writes and op.outputs != op.writes):
        return None
    dims = dims_of(op, len(scope.graph.values[op.reads()[0]].shape))
    operands = [scope.graph.values[v].shape for v in op.reads()]
    if not dims or any(len(shape) != len(operands[0]) for shape in operands):
        return None
    alike = len({tuple(s for d, s in enumerate(shape) if d not in dims) for shape in operands}) == 1
    return _lower if alike else None


def _lower(scope: Scope, op: Op) -> None:
    """Compute each slice on the tile that holds its first result."""
    given, arguments, keywords = operands(scope, op)
    dims = dims_of(op, given[0].elements.ndim)
    assert dims is not None
    regions = [_slices(region, dims) for region in given]
    outs = [None if v is None else scope.region(v) for v in op.outputs]
    results = [
        None if out is None
        else _slices(out, dims) if out.elements.ndim == given[0].elements.ndim
        else reshaped(out, len(regions[0].elements), 1)
        for out in outs
    ]  # fmt: skip
    first = next(result for result in results if result is not None)
    if first.elements.size:
        parts = {tile: (here,) for tile, here in grouped(scope.builder.holders(first)[:, 0])}
        along = _along_last(op, arguments, keywords)
        in_parts(scope, op.target, regions, results, parts, along[0], keywords=along[1])


def _slices(region: Region, dims: list[int]) -> Region:
    """Return a region [..., dims, ...] as [slices, elements of a slice]."""
    others = [d for d in range(region.elements.ndim) if d not in dims]
    moved = region.elements.transpose([*others, *dims])
    rows = math.prod(moved.shape[: len(others)])
    return Region(variable=region.variable, elements=moved.reshape(rows, math.prod(moved.shape[len(others) :])))


def _along_last(op: Op, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments for operands of shape [slices, elements of a slice]."""
    position = position_of(op, "dim")
    assert position is not None
    kind = str(overload(op.target)._schema.arguments[position].type)  # type: ignore[attr-defined]
    last: Any = [-1] if "int[" in kind or "List" in kind else -1
    if position < len(arguments):
        return (*arguments[:position], last, *arguments[position + 1 :]), keywords
    return arguments, {**keywords, "dim": last}

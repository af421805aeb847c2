"""Sorts, and what else works along dimensions: each slice by itself."""

import math
from typing import Any

import numpy as np

from popgeo.capture.op_graph import Op, overload, substitute
from popgeo.ipu.tiles.lower.builder import Lowering, Scope
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.steps import Operand, Region, Vertex


def lowering_of(scope: Scope, op: Op) -> Lowering | None:
    """How slices along an operation's dimensions are computed; None where they depend on each other."""
    if not op.reads() or (op.writes and op.outputs != op.writes):
        return None
    dims = _dims(scope, op)
    operands = [scope.value(v).shape for v in op.reads()]
    if dims is None or any(len(shape) != len(operands[0]) for shape in operands):
        return None
    alike = len({tuple(s for d, s in enumerate(shape) if d not in dims) for shape in operands}) == 1
    return _lower if alike else None


def _lower(scope: Scope, op: Op) -> None:
    """One compute set: a slice is computed on the tile that holds its first result."""
    dims = _dims(scope, op)
    assert dims is not None
    regions = [_slices(scope.region(v), dims) for v in op.reads()]
    count = regions[0].elements.shape[0]
    outs = [scope.region(v) if v is not None else None for v in op.outputs]
    rank = len(scope.value(op.reads()[0]).shape)
    results = [None if out is None else _result_slices(out, dims, rank, count) for out in outs]
    first = next(result for result in results if result is not None)
    builder = scope.builder
    if not first.elements.size:
        return
    at = builder.holders(first)[:, 0]
    placed = [
        result
        if result is None or (builder.holders(result) == at[:, None]).all()
        else builder.partial(scope.label, builder.dtype(result), np.broadcast_to(at[:, None], result.elements.shape))
        for result in results
    ]
    arguments, keywords = _along_last(op)
    vertices = []
    for tile in np.unique(at).tolist():
        here = np.flatnonzero(at == tile)
        vertices.append(
            Vertex(
                tile=tile,
                operation=op.target,
                reads=tuple(Region(variable=r.variable, elements=r.elements[here]) for r in regions),
                writes=tuple(
                    None if r is None else Region(variable=r.variable, elements=r.elements[here]) for r in placed
                ),
                arguments=arguments,
                keywords=keywords,
            )
        )
    builder.compute(scope.label, vertices)
    for result, made in zip(results, placed, strict=True):
        if result is not None and made is not None and made is not result:
            copy(scope, result, made)


def _slices(region: Region, dims: list[int]) -> Region:
    """[..., dims, ...] -> [slices, elements of a slice]"""
    rank = region.elements.ndim
    others = [d for d in range(rank) if d not in dims]
    moved = region.elements.transpose([*others, *dims])
    rows = math.prod(moved.shape[: len(others)])
    return Region(variable=region.variable, elements=moved.reshape(rows, math.prod(moved.shape[len(others) :])))


def _result_slices(out: Region, dims: list[int], rank: int, count: int) -> Region:
    if out.elements.ndim == rank:
        return _slices(out, dims)
    return Region(variable=out.variable, elements=out.elements.reshape(count, 1))


def _dims(scope: Scope, op: Op) -> list[int] | None:
    """The dimensions an operation works along, as its schema names them; None where they cannot be cut out."""
    rank = len(scope.value(op.reads()[0]).shape)
    given: Any = "absent"
    for position, argument in enumerate(overload(op.target)._schema.arguments):  # type: ignore[attr-defined]
        if argument.name == "dim":
            given = op.args[position] if position < len(op.args) else op.kwargs.get("dim", argument.default_value)
    if given == "absent" or not rank:
        return None
    if given is None or given == []:
        return list(range(rank))
    return sorted(d % rank for d in (given if isinstance(given, list | tuple) else [given]))


def _along_last(op: Op) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments for operands of shape [slices, elements of a slice]."""
    order = iter(range(len(op.reads())))
    arguments = list(substitute(op.args, lambda v: Operand(next(order))))
    keywords = {key: substitute(argument, lambda v: Operand(next(order))) for key, argument in op.kwargs.items()}
    for position, argument in enumerate(overload(op.target)._schema.arguments):  # type: ignore[attr-defined]
        if argument.name == "dim":
            last: Any = [-1] if "int[" in str(argument.type) or "List" in str(argument.type) else -1
            if position < len(arguments):
                arguments[position] = last
            else:
                keywords["dim"] = last
    return tuple(arguments), keywords

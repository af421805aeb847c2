"""Lowers layer norm, which has independent rows, and batch norm, which has independent channels."""

import itertools
import math
from collections.abc import Sequence

from popgeo.capture.op_graph import Op, Ref
from popgeo.ipu.tiles.lower.builder import Scope, reshaped
from popgeo.ipu.tiles.lower.elementwise import operands
from popgeo.ipu.tiles.lower.in_parts import in_parts, rows_for_tiles
from popgeo.ipu.tiles.steps import Operand, Region


def lower_layer_norm(scope: Scope, op: Op) -> None:
    """Lower aten.native_layer_norm(input, normalized_shape, weight, bias, eps) -> (out, mean, rstd) by rows."""
    width = math.prod(op.args[1])
    x = reshaped(scope.region(op.args[0].value), -1, width)
    affine, places = _given(scope, op.args[2:4], first=1)
    rows = x.elements.shape[0]
    results = [None if v is None else reshaped(scope.region(v), rows, -1) for v in op.outputs]
    arguments = (Operand(0), [width], *places, op.args[4])
    parts = rows_for_tiles(scope, rows)
    in_parts(scope, op.target, [x, *affine], results, parts, arguments, whole=(1, 2))


def lower_layer_norm_backward(scope: Scope, op: Op) -> None:
    """Lower aten.native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight, bias, mask)."""
    width = math.prod(op.args[2])
    grad, x = (reshaped(scope.region(op.args[k].value), -1, width) for k in (0, 1))
    rows = x.elements.shape[0]
    mean, rstd = (reshaped(scope.region(op.args[k].value), rows, 1) for k in (3, 4))
    affine, places = _given(scope, op.args[5:7], first=4)
    made = zip(op.outputs, ((rows, width), (width,), (width,)), strict=True)
    results = [None if v is None else reshaped(scope.region(v), *shape) for v, shape in made]
    arguments = (Operand(0), Operand(1), [width], Operand(2), Operand(3), *places, list(op.args[7]))
    given, parts = [grad, x, mean, rstd, *affine], rows_for_tiles(scope, rows)
    in_parts(scope, op.target, given, results, parts, arguments, whole=(4, 5), summed=(1, 2))


def _given(scope: Scope, arguments: Sequence[object], first: int) -> tuple[list[Region], list[Operand | None]]:
    """Return the tensors among some arguments, and an operand for each tensor, numbered from `first` on."""
    order = itertools.count(first)
    tensors = [scope.region(argument.value) for argument in arguments if isinstance(argument, Ref)]
    return tensors, [Operand(next(order)) if isinstance(argument, Ref) else None for argument in arguments]


def lower_batch_norm(scope: Scope, op: Op) -> None:
    """Lower aten.native_batch_norm(input, weight, bias, running_mean, ...), and its gradient, by channels.

    Running statistics that change in place are written back.
    """
    given, arguments, _ = operands(scope, op)
    made = [v for v in op.outputs if v is not None and v not in op.reads() and scope.graph.values[v].numel]
    kept = tuple(v in made for v in op.outputs)
    changed = list(dict.fromkeys(op.writes))
    names = [Operand(op.reads().index(v)) for v in changed]
    results, parts = [scope.region(v) for v in (*made, *changed)], rows_for_tiles(scope, given[0].elements.shape[1])
    in_parts(scope, "call", given, results, parts, (op.target, arguments, kept, names), dim=1)

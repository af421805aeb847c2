"""Lowers layer norm, which has independent rows, and batch norm, which has independent channels."""

import math

from popgeo.capture.op_graph import Op
from popgeo.ipu.tiles.lower.builder import Scope, reshaped
from popgeo.ipu.tiles.lower.elementwise import operands
from popgeo.ipu.tiles.lower.in_parts import in_parts, rows_for_tiles
from popgeo.ipu.tiles.steps import Operand


def lower_layer_norm(scope: Scope, op: Op) -> None:
    """Lower aten.native_layer_norm(input, normalized_shape, weight, bias, eps) -> (out, mean, rstd) by rows."""
    (x, *affine), arguments, _ = operands(scope, op)
    width = math.prod(op.args[1])
    rows = x.elements.size // width
    given = [reshaped(x, rows, -1), *(reshaped(one, -1) for one in affine)]
    results = [None if v is None else reshaped(scope.region(v), rows, -1) for v in op.outputs]
    flat = (arguments[0], [width], *arguments[2:])
    in_parts(scope, op.target, given, results, rows_for_tiles(scope, rows), flat, whole=(1, 2))


def lower_layer_norm_backward(scope: Scope, op: Op) -> None:
    """Lower aten.native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight, bias, mask)."""
    given, arguments, _ = operands(scope, op)
    width = math.prod(op.args[2])
    rows = given[0].elements.size // width
    affine = [reshaped(one, -1) for one in given[4:]]  # weight and bias, if there are any
    given = [*(reshaped(one, rows, -1) for one in given[:4]), *affine]
    made = zip(op.outputs, ((rows, width), (width,), (width,)), strict=True)
    results = [None if v is None else reshaped(scope.region(v), *shape) for v, shape in made]
    flat, parts = (*arguments[:2], [width], *arguments[3:]), rows_for_tiles(scope, rows)
    in_parts(scope, op.target, given, results, parts, flat, whole=(4, 5), summed=(1, 2))


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

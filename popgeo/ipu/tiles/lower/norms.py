"""Layer norm, whose rows are independent, and batch norm, whose channels are."""

import math

import numpy as np

from popgeo.capture.op_graph import Op, Ref
from popgeo.capture.operations import name_of
from popgeo.ipu.tiles.lower.builder import Lowering, Scope, cuts, part, reshaped
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.lower.reduce import combine_partials
from popgeo.ipu.tiles.steps import Operand, Region, Vertex


def lowering_of(scope: Scope, op: Op) -> Lowering:
    """How a norm is lowered."""
    return LOWERINGS[name_of(op.target)]


def _layer_norm(scope: Scope, op: Op) -> None:
    """aten.native_layer_norm(input, normalized_shape, weight, bias, eps) -> (out, mean, rstd): a tile takes rows."""
    width = math.prod(op.args[1])
    x = reshaped(scope.region(op.args[0].value), -1, width)
    given = [scope.region(arg.value) for arg in op.args[2:4] if isinstance(arg, Ref)]
    refs = iter(range(1, 3))
    affine = [Operand(next(refs)) if isinstance(arg, Ref) else None for arg in op.args[2:4]]
    results = [None if v is None else scope.region(v) for v in op.outputs]
    rows = x.elements.shape[0]
    here = [None if r is None else _by_row(scope, reshaped(r, rows, -1)) for r in results]
    scope.builder.compute(
        scope.label,
        [
            Vertex(
                tile=tile,
                operation=op.target,
                reads=(part(x, some), *given),
                writes=tuple(None if r is None else part(r, some) for r in here),
                arguments=(Operand(0), [width], *affine, op.args[4]),
            )
            for tile, some in enumerate(cuts(rows, scope.builder.num_tiles))
            if rows
        ],
    )
    _spread(scope, results, here)


def _layer_norm_backward(scope: Scope, op: Op) -> None:
    """aten.native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight, bias, mask)."""
    width, builder = math.prod(op.args[2]), scope.builder
    grad, x = (reshaped(scope.region(op.args[k].value), -1, width) for k in (0, 1))
    rows = x.elements.shape[0]
    mean, rstd = (reshaped(scope.region(op.args[k].value), rows, 1) for k in (3, 4))
    affine = [scope.region(arg.value) for arg in op.args[5:7] if isinstance(arg, Ref)]
    refs = iter(range(4, 6))
    operands = [Operand(next(refs)) if isinstance(arg, Ref) else None for arg in op.args[5:7]]
    results = [None if v is None else scope.region(v) for v in op.outputs]
    row_cuts = cuts(rows, builder.num_tiles)
    own = np.broadcast_to(np.arange(len(row_cuts))[:, None], (len(row_cuts), width))
    to_x = None if results[0] is None else _by_row(scope, reshaped(results[0], rows, width))
    partial = [None if r is None else builder.partial(scope.label, builder.dtype(r), own) for r in results[1:]]
    builder.compute(
        scope.label,
        [
            Vertex(
                tile=tile,
                operation=op.target,
                reads=(part(grad, some), part(x, some), part(mean, some), part(rstd, some), *affine),
                writes=(
                    None if to_x is None else part(to_x, some),
                    *(None if r is None else part(r, tile) for r in partial),
                ),
                arguments=(Operand(0), Operand(1), [width], Operand(2), Operand(3), *operands, list(op.args[7])),
            )
            for tile, some in enumerate(row_cuts)
            if rows
        ],
    )
    _spread(scope, results[:1], [to_x])
    for result, sums in zip(results[1:], partial, strict=True):
        if result is not None and sums is not None:
            places = np.broadcast_to(np.arange(width), own.shape)
            combine_partials(scope, reshaped(result, width), sums, places, "sum")


def _batch_norm(scope: Scope, op: Op) -> None:
    """aten.native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)."""
    changed = [op.args[k] for k in (3, 4) if isinstance(op.args[k], Ref) and op.args[5]]
    _by_channel(scope, op, [scope.region(ref.value) for ref in changed])


def _batch_norm_backward(scope: Scope, op: Op) -> None:
    """aten.native_batch_norm_backward(grad, input, weight, running_mean, running_var, mean, invstd, train, ...)."""
    _by_channel(scope, op, [])


def _by_channel(scope: Scope, op: Op, changed: list[Region]) -> None:
    """A tile takes channels; what is changed in place is written back."""
    builder = scope.builder
    regions = [scope.region(v) for v in op.reads()]
    channels = regions[0].elements.shape[1]
    order = iter(range(len(regions)))
    arguments = tuple(Operand(next(order)) if isinstance(arg, Ref) else arg for arg in op.args)
    made = [v for v in op.outputs if v is not None and v not in op.reads() and scope.value(v).numel]
    results = [*(scope.region(v) for v in made), *changed]
    channel_cuts = cuts(channels, builder.num_tiles)
    here: list[Region | None] = []
    for result in results:
        at = np.zeros(result.elements.shape, np.int32)
        for tile, some in enumerate(channel_cuts):
            _channel_part(at, some)[...] = tile
        here.append(builder.partial(scope.label, builder.dtype(result), at))
    kept = tuple(v in made for v in op.outputs)
    names = [op.reads().index(v) for v in dict.fromkeys(op.writes)] if changed else []

    def cut(region: Region | None, some: slice) -> Region:
        assert region is not None
        return Region(variable=region.variable, elements=_channel_part(region.elements, some))

    builder.compute(
        scope.label,
        [
            Vertex(
                tile=tile,
                operation="call",
                reads=tuple(cut(region, some) for region in regions),
                writes=tuple(cut(region, some) for region in here),
                arguments=(op.target, arguments, kept, [Operand(position) for position in names]),
            )
            for tile, some in enumerate(channel_cuts)
        ],
    )
    _spread(scope, list(results), here)


def _channel_part(elements: np.ndarray, some: slice) -> np.ndarray:
    return elements[some] if elements.ndim == 1 else elements[:, some]


def _by_row(scope: Scope, result: Region) -> Region:
    """The result itself where it lies by rows as the tiles take them, else a partial result that does."""
    rows = result.elements.shape[0]
    at = np.zeros(result.elements.shape, np.int32)
    for tile, some in enumerate(cuts(rows, scope.builder.num_tiles)):
        at[some] = tile
    if (scope.builder.holders(result) == at).all():
        return result
    return scope.builder.partial(scope.label, scope.builder.dtype(result), at)


def _spread(scope: Scope, results: list[Region | None], here: list[Region | None]) -> None:
    """Copies what was made elsewhere to where it lies."""
    for result, made in zip(results, here, strict=True):
        if result is not None and made is not None and made.variable != result.variable:
            copy(scope, result, made)


LOWERINGS: dict[str, Lowering] = {
    "aten.native_layer_norm": _layer_norm,
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "aten.native_batch_norm": _batch_norm,
    "aten.native_batch_norm_backward": _batch_norm_backward,
}

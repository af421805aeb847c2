"""Convolutions: a tile takes samples, and gradients of the weights are summed over the tiles."""

import numpy as np

from popgeo.capture.op_graph import Op, Ref, substitute
from popgeo.ipu.tiles.lower.builder import Lowering, Scope, cuts, part
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.lower.reduce import combine_partials
from popgeo.ipu.tiles.steps import Operand, Region, Vertex


def lowering_of(scope: Scope, op: Op) -> Lowering:
    """How a convolution is lowered, forward or backward."""
    return _backward if op.target.startswith("aten.convolution_backward") else _forward


def _forward(scope: Scope, op: Op) -> None:
    """aten.convolution(input, weight, bias, ...): windows of a sample are on the tile that has the sample."""
    by_sample(scope, op, cut=1)


def _backward(scope: Scope, op: Op) -> None:
    """aten.convolution_backward(grad, input, weight, ..., mask): samples, and partial sums for weight and bias."""
    by_sample(scope, op, cut=2, summed=(1, 2))


def by_sample(scope: Scope, op: Op, cut: int, summed: tuple[int, ...] = ()) -> None:
    """One compute set: a tile works on some samples of the first operands and makes these samples of the results.

    Args:
        scope: The operation's.
        op: The operation.
        cut: Operands, from the first on, that have a dimension of samples in front; the others go to every tile.
        summed: Results that have none: those of the tiles are added up.
    """
    builder = scope.builder
    given = [scope.region(v) for v in op.reads()]
    results = [None if v is None else scope.region(v) for v in op.outputs]
    sample_cuts = cuts(given[0].elements.shape[0], builder.num_tiles)
    if not given[0].elements.size:
        return
    order = iter(range(len(given)))
    arguments = tuple(substitute(argument, lambda v: Operand(next(order))) for argument in op.args)
    made: list[Region | None] = []
    for number, result in enumerate(results):
        if result is None:
            made.append(None)
            continue
        shape = result.elements.shape
        if number in summed:
            at = np.broadcast_to(np.arange(len(sample_cuts)).reshape(-1, *[1] * len(shape)), (len(sample_cuts), *shape))
        else:
            at = np.zeros(shape, np.int32)
            for tile, some in enumerate(sample_cuts):
                at[some] = tile
        made.append(builder.partial(scope.label, builder.dtype(result), at))
    builder.compute(
        scope.label,
        [
            Vertex(
                tile=tile,
                operation=op.target,
                reads=tuple(part(region, some) if k < cut else region for k, region in enumerate(given)),
                writes=tuple(
                    None if r is None else part(r, tile if number in summed else some) for number, r in enumerate(made)
                ),
                arguments=_for_samples(op, arguments, some.stop - some.start),
            )
            for tile, some in enumerate(sample_cuts)
        ],
    )
    for number, (result, here) in enumerate(zip(results, made, strict=True)):
        if result is None or here is None:
            continue
        if number in summed:
            places = np.broadcast_to(
                np.arange(result.elements.size).reshape(result.elements.shape), here.elements.shape
            )
            combine_partials(scope, result, here, places, "sum")
        else:
            copy(scope, result, here)


def _for_samples(op: Op, arguments: tuple[object, ...], samples: int) -> tuple[object, ...]:
    """Gradients of enlarged pictures are told the size of what was enlarged, samples included."""
    if not (op.target.startswith("aten.upsample") and "_backward" in op.target):
        return arguments
    assert isinstance(op.args[0], Ref)
    return (*arguments[:2], [samples, *op.args[2][1:]], *arguments[3:])

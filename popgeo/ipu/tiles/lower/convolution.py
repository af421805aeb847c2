"""Convolutions: a tile takes samples, and gradients of the weights are summed over the tiles."""

from collections.abc import Collection
from typing import Any

from popgeo.capture.op_graph import Op
from popgeo.ipu.tiles.lower.builder import Scope
from popgeo.ipu.tiles.lower.elementwise import operands
from popgeo.ipu.tiles.lower.in_parts import in_parts, rows_for_tiles


def lower_convolution(scope: Scope, op: Op) -> None:
    """aten.convolution(input, weight, bias, ...): windows of a sample are on the tile that has the sample."""
    by_sample(scope, op, cut=1)


def lower_convolution_backward(scope: Scope, op: Op) -> None:
    """aten.convolution_backward(grad, input, weight, ..., mask): samples, and partial sums for weight and bias."""
    by_sample(scope, op, cut=2, summed=(1, 2))


def by_sample(scope: Scope, op: Op, cut: int, summed: Collection[int] = ()) -> None:
    """Each tile works on some samples of the first operands and makes these samples of the results.

    Args:
        scope: The operation's.
        op: The operation.
        cut: Operands, from the first on, that have a dimension of samples in front; the others go to every tile.
        summed: Results without samples: the parts of the tiles are added up.
    """
    given, arguments, _ = operands(scope, op)
    results = [None if v is None else scope.region(v) for v in op.outputs]
    parts = rows_for_tiles(scope, given[0].elements.shape[0])
    of_tiles = {tile: _for_samples(op, arguments, some.stop - some.start) for tile, (some,) in parts.items()}
    whole = range(cut, len(given))
    in_parts(scope, op.target, given, results, parts, of_tiles, whole=whole, summed=summed)


def _for_samples(op: Op, arguments: tuple[Any, ...], samples: int) -> tuple[Any, ...]:
    """Gradients of enlarged pictures receive the size of the original, samples included."""
    if not (op.target.startswith("aten.upsample") and "_backward" in op.target):
        return arguments
    return (*arguments[:2], [samples, *op.args[2][1:]], *arguments[3:])

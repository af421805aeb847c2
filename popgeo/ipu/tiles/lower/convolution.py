"""Convolutions: a tile takes samples, and gradients of the weights are summed over the tiles."""

from popgeo.capture.op_graph import Op
from popgeo.ipu.tiles.lower.builder import Scope
from popgeo.ipu.tiles.lower.in_parts import by_rows


def lower_convolution(scope: Scope, op: Op) -> None:
    """aten.convolution(input, weight, bias, ...): windows of a sample are on the tile that has the sample."""
    by_rows(scope, op, whole=(1, 2))


def lower_convolution_backward(scope: Scope, op: Op) -> None:
    """aten.convolution_backward(grad, input, weight, ..., mask): samples, and partial sums for weight and bias."""
    by_rows(scope, op, whole=(2,), summed=(1, 2))

"""Lowers convolutions: a tile takes samples, and gradients of the weights are summed over the tiles."""

from popgeo.capture.op_graph import Op
from popgeo.ipu.tiles.lower.builder import Scope
from popgeo.ipu.tiles.lower.in_parts import by_rows


def lower_convolution(scope: Scope, op: Op) -> None:
    """Lower aten.convolution(input, weight, bias, ...): all windows of a sample are on one tile."""
    by_rows(scope, op, whole=(1, 2))


def lower_convolution_backward(scope: Scope, op: Op) -> None:
    """Lower aten.convolution_backward(grad, input, weight, ...) by samples; weight and bias have partial sums."""
    by_rows(scope, op, whole=(2,), summed=(1, 2))

"""Lowers convolutions: a tile takes samples, and gradients of the weights are summed over the tiles."""

from functools import partial

from popgeo.ipu.tiles.lower.in_parts import by_rows

# aten.convolution(input, weight, bias, ...): all windows of a sample are on one tile.
lower_convolution = partial(by_rows, whole=(1, 2))
# aten.convolution_backward(grad, input, weight, ...) by samples; weight and bias have partial sums.
lower_convolution_backward = partial(by_rows, whole=(2,), summed=(1, 2))

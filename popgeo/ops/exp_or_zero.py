"""Exponentials that become exactly 0 before they or their products with weights are denormal numbers."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_MARGIN = 0.01  # more than bfloat16's rounding error, so that exponents at the floor stay below the threshold


def least_exponent(dtype: torch.dtype) -> float:
    """Return the exponent at or below which an exponential is set to 0: -60, or -600 in float64.

    e^-60 is 1e-26, twelve orders of magnitude above the denormal numbers of float32, so that its product with a weight
    or a gradient is normal too. Processors need up to a hundred times longer for denormal numbers. float16 has no
    denormal results here, because it is computed in float32.

    Example:
        >>> least_exponent(torch.float32), least_exponent(torch.float64)
        (-60.0, -600.0)
    """
    return -600.0 if dtype is torch.float64 else -60.0


def greatest_zero(dtype: torch.dtype) -> float:
    """Return the largest exponent whose exponential is set to 0, slightly above `least_exponent`.

    Example:
        >>> greatest_zero(torch.float32)
        -59.99
    """
    return least_exponent(dtype) + _MARGIN


def exp_or_zero(x: Tensor) -> Tensor:
    """Compute e^x. The result and its gradients are exactly 0 if `x` is at most `least_exponent(x.dtype)`.

    Args:
        x: Exponents of a floating point type, any shape; NaN stays NaN.

    Returns:
        Exponentials of the same shape.

    Example:
        >>> exp_or_zero(torch.tensor([0.0, -59.0, -60.0, -90.0, -torch.inf]))
        tensor([1.0000e+00, 2.3803e-26, 0.0000e+00, 0.0000e+00, 0.0000e+00])
    """
    least = least_exponent(x.dtype)
    # Clamped first, because MKL's exponential takes eight times as long if it underflows.
    return F.threshold(torch.exp(x.clamp(min=least)), math.exp(greatest_zero(x.dtype)), 0.0)


def sigmoid_or_zero(x: Tensor) -> Tensor:
    """Compute 1 / (1 + e^-x). The result is exactly 0 if `x` is at most `least_exponent(x.dtype)`.

    Example:
        >>> sigmoid_or_zero(torch.tensor([0.0, -88.0]))
        tensor([0.5000, 0.0000])
    """
    least = least_exponent(x.dtype)
    return F.threshold(torch.sigmoid(x.clamp(min=least)), math.exp(greatest_zero(x.dtype)), 0.0)

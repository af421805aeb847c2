"""Exponentials that never become denormal, nor what a product with them would be."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_MARGIN = 0.01  # wider than bfloat16 rounds, so that what is at the floor is surely below the threshold


def least_exponent(dtype: torch.dtype) -> float:
    """The exponent up to which an exponential is no more than rounding: -60, and -600 in float64.

    e^-60 is 1e-26, eighteen orders above the denormal numbers of float32, so that a weight or a gradient times what is
    kept is normal still. Processors take up to a hundred times longer over denormal numbers than over others. float16
    has no denormal results here: it is computed in float32.

    Example:
        >>> least_exponent(torch.float32), least_exponent(torch.float64)
        (-60.0, -600.0)
    """
    return -600.0 if dtype is torch.float64 else -60.0


def exp_or_zero(x: Tensor) -> Tensor:
    """e^x if that is not a denormal number nor leads to one, exactly 0 elsewhere; so are its gradients.

    Args:
        x: Exponents of a floating point type, any shape; NaN stays NaN.

    Returns:
        The same shape; 0 where `x` is at most `least_exponent(x.dtype)`.

    Example:
        >>> exp_or_zero(torch.tensor([0.0, -59.0, -60.0, -90.0, -torch.inf]))
        tensor([1.0000e+00, 2.3803e-26, 0.0000e+00, 0.0000e+00, 0.0000e+00])
    """
    least = least_exponent(x.dtype)
    # Lowered to a floor first, because MKL's exponential takes eight times as long if it underflows.
    return F.threshold(torch.exp(x.clamp(min=least)), math.exp(least + _MARGIN), 0.0)


def sigmoid_or_zero(x: Tensor) -> Tensor:
    """1 / (1 + e^-x), exactly 0 where `exp_or_zero` is.

    Example:
        >>> sigmoid_or_zero(torch.tensor([0.0, -88.0]))
        tensor([0.5000, 0.0000])
    """
    least = least_exponent(x.dtype)
    return F.threshold(torch.sigmoid(x.clamp(min=least)), math.exp(least + _MARGIN), 0.0)

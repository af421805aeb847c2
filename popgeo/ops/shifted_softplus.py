"""Shifted softplus, the activation in SchNet's filter networks, as one fused op."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from popgeo.native import library
from popgeo.ops.exp_or_zero import least_exponent, sigmoid_or_zero
from popgeo.ops.kernel_arguments import check_array
from popgeo.ops.register_op import register

_LN2 = math.log(2.0)


def shifted_softplus(x: Tensor) -> Tensor:
    """Compute ln(e^x / 2 + 1 / 2), which is 0 at 0 (arXiv:1706.08566); correct for every x and differentiable twice.

    A compiled kernel computes float32 on the CPU. torch's softplus computes other types and devices.

    Args:
        x: Numbers of any shape.

    Returns:
        Numbers of the same shape.

    Example:
        >>> shifted_softplus(torch.tensor([-200.0, 0.0, 200.0]))
        tensor([ -0.6931,   0.0000, 199.3069])
    """
    return _SHIFTED_SOFTPLUS(x)


def _forward(x: Tensor) -> Tensor:
    native = library.function("popgeo_shifted_softplus", "PPq")
    if native is None or x.dtype != torch.float32 or x.device.type != "cpu":
        return F.softplus(x.clamp(min=least_exponent(x.dtype))) - _LN2
    x = library.as_read(x)
    out = torch.empty_like(x)
    native(library.address(x), out.data_ptr(), x.numel())
    return out


def _backward(grad: Tensor, x: Tensor) -> Tensor:
    """Compute grad * sigmoid(x), and 0 if the sigmoid is below e^-60."""
    check_array("grad", grad, x.shape, x.dtype)
    native = library.function("popgeo_shifted_softplus_backward", "PPPq")
    if native is None or x.dtype != torch.float32 or x.device.type != "cpu":
        return grad * sigmoid_or_zero(x)
    grad, x = library.as_read(grad), library.as_read(x)
    out = torch.empty_like(x)
    native(library.address(grad), library.address(x), out.data_ptr(), x.numel())
    return out


def _differentiate(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return _SHIFTED_SOFTPLUS_BACKWARD(grad, x)


def _differentiate_backward(ctx: Any, to_grad: Tensor) -> tuple[Tensor, Tensor]:
    grad, x = ctx.saved_tensors
    sigmoid = torch.sigmoid(x)
    return to_grad * sigmoid, to_grad * grad * sigmoid * (1 - sigmoid)


_SHIFTED_SOFTPLUS = register(
    "shifted_softplus(Tensor x) -> Tensor",
    kernel=_forward,
    fake=lambda x: x.new_empty(x.shape),
    backward=_differentiate,
)
_SHIFTED_SOFTPLUS_BACKWARD = register(
    "shifted_softplus_backward(Tensor grad, Tensor x) -> Tensor",
    kernel=_backward,
    fake=lambda grad, x: x.new_empty(x.shape),
    backward=_differentiate_backward,
)

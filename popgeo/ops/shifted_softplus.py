"""Shifted softplus, the activation in SchNet's filter networks, as one fused op."""

import math
import struct
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from popgeo.native import library
from popgeo.ops.exp_or_zero import least_exponent, sigmoid_or_zero
from popgeo.ops.kernel_arguments import check_array
from popgeo.ops.register_op import register

_LN2 = math.log(2.0)
_pack = struct.Struct("5q").pack  # SoftplusCall


def shifted_softplus(x: Tensor) -> Tensor:
    """Compute ln(e^x / 2 + 1 / 2), which is 0 at 0 (arXiv:1706.08566); correct for every x and differentiable twice.

    A compiled kernel computes float32 and float64 on the CPU. torch's softplus computes other types and devices.

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
    out = _compiled(None, x)
    if out is None:
        # Beyond the threshold torch returns x; its own, 20, loses digits of float64.
        out = F.softplus(x.clamp(min=least_exponent(x.dtype)), threshold=40.0) - _LN2
    return out


def _backward(grad: Tensor, x: Tensor) -> Tensor:
    """Compute grad * sigmoid(x), and 0 if the sigmoid is below e^-60, or e^-600 in float64."""
    check_array("grad", grad, x.shape, x.dtype)
    out = _compiled(grad, x)
    return grad * sigmoid_or_zero(x) if out is None else out


def _compiled(grad: Tensor | None, x: Tensor) -> Tensor | None:
    """Return the result of the compiled kernel, backward if there is a gradient, or None if it does not serve `x`."""
    native = library.packed("popgeo_shifted_softplus")
    if native is None or x.dtype not in (torch.float32, torch.float64) or x.device.type != "cpu":
        return None
    grad, x = None if grad is None else grad.contiguous(), x.contiguous()
    out = torch.empty_like(x)
    pointers = library.address(grad), library.address(x), out.data_ptr()
    if native(_pack(x.dtype is torch.float64, *pointers, x.numel())):
        raise MemoryError("popgeo could not allocate its working memory.")
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

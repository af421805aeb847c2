"""Shifted softplus, the activation between SchNet's filters, in one pass over memory each way."""

import ctypes
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from popgeo.native import library
from popgeo.ops.registration import is_direct

_LN2 = math.log(2.0)
_POINTER = ctypes.c_void_p


def shifted_softplus(x: Tensor) -> Tensor:
    """ln(e^x / 2 + 1 / 2), which is 0 at 0 (arXiv:1706.08566), right for every x; differentiable twice.

    The compiled kernel takes float32 on the CPU outside capture; everything else is torch's own softplus.

    Example:
        >>> shifted_softplus(torch.tensor([-200.0, 0.0, 200.0]))
        tensor([ -0.6931,   0.0000, 199.3069])
    """
    forward = library.function("popgeo_shifted_softplus", (_POINTER, _POINTER, ctypes.c_int64))
    if forward is None or x.dtype != torch.float32 or x.device.type != "cpu" or not is_direct():
        return F.softplus(x) - _LN2
    return _ShiftedSoftplus.apply(x)


class _ShiftedSoftplus(torch.autograd.Function):
    """The compiled kernel; its gradient is another function of autograd, so that forces can be trained."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        out = torch.empty_like(x)
        forward = library.function("popgeo_shifted_softplus", (_POINTER, _POINTER, ctypes.c_int64))
        assert forward is not None, "chosen only where the library is loaded"
        forward(x.data_ptr(), out.data_ptr(), x.numel())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return _TimesSigmoid.apply(grad, x)


class _TimesSigmoid(torch.autograd.Function):
    """grad * sigmoid(x), in one pass; its own gradient is plain torch."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(grad, x)
        backward = library.function("popgeo_shifted_softplus_backward", (_POINTER, _POINTER, _POINTER, ctypes.c_int64))
        if backward is None:
            return grad * torch.sigmoid(x)
        grad = grad.contiguous()
        out = torch.empty_like(x)
        backward(grad.data_ptr(), x.data_ptr(), out.data_ptr(), x.numel())
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor]:
        grad, x = ctx.saved_tensors
        sigmoid = torch.sigmoid(x)
        return grad_out * sigmoid, grad_out * grad * sigmoid * (1 - sigmoid)

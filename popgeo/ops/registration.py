"""How an op becomes known to torch: one schema, one kernel, one shape rule, one derivative."""

from collections.abc import Callable
from typing import Any

import torch
from torch import _C, Tensor
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter

LIBRARY = torch.library.Library("popgeo", "DEF")
DEVICES = ("CPU", "CUDA")


def register(
    schema: str,
    *,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> None:
    """Registers `popgeo::<schema>` so that capture, compile and export see it as one op.

    The low-level interface is used because `torch.library.custom_op` costs three times as much per call. Every op that
    a `backward` calls has a `backward` of its own: without it torch differentiates twice and returns wrong numbers.

    Args:
        schema: Name and arguments in torch's schema language, such as `gather(Tensor x, Tensor index) -> Tensor`.
        kernel: Computes the result on real tensors.
        fake: Returns empty tensors of the result's shapes; no shape may depend on data.
        setup_context: Saves what `backward` needs. `setup_context(ctx, inputs, output)`
        backward: Gradients of all inputs from those of the outputs. `backward(ctx, *grads)`
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for device in DEVICES:
        LIBRARY.impl(name, kernel, device)
    torch.library.register_fake(f"popgeo::{name}", fake, lib=LIBRARY)
    if backward is not None:
        torch.library.register_autograd(f"popgeo::{name}", backward, setup_context=setup_context, lib=LIBRARY)


def is_direct(*tensors: Tensor) -> bool:
    """Whether a kernel may be called without torch's dispatcher: nothing traces, transforms or differentiates.

    Saves about 8 microseconds a call. Everything that watches ops must turn it off: dynamo, dispatch modes (make_fx,
    fake tensors), functorch transforms, forward-mode dual numbers, tensor subclasses and, of course, autograd.

    Raises:
        ValueError: a tensor is a forward-mode dual number, whose tangent torch would silently drop.
    """
    if (
        is_compiling()
        or _C._len_torch_dispatch_stack() > 0
        or _functorch.peek_interpreter_stack() is not None
        or _C._get_tracing_state() is not None
        or (forward_ad._current_level >= 0 and _is_forward_mode(*tensors))
    ):
        return False
    differentiates = torch.is_grad_enabled()
    for tensor in tensors:
        if type(tensor) is not Tensor and type(tensor) is not Parameter:
            return False
        if differentiates and tensor.requires_grad:
            return False
        if _functorch.is_legacy_batchedtensor(tensor):  # torch.autograd.grad(..., is_grads_batched=True)
            return False
    return True


def _is_forward_mode(*tensors: Tensor) -> bool:
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise ValueError("popgeo's ops have no forward-mode derivative. Use reverse mode: torch.autograd.grad.")
    return True

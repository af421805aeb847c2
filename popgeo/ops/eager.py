"""Checks whether a call is plain eager code, without capture, transform or trace, so that an op can use a fast path."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import _C, Tensor
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack


def is_direct(*tensors: Tensor) -> bool:
    """Check that nothing traces, transforms or differentiates operations on these tensors.

    The result is False under dynamo, dispatch modes (make_fx, fake tensors), functorch transforms and forward-mode dual
    levels, while a CUDA graph is captured, for tensor subclasses, and if a tensor needs a gradient.

    Raises:
        ValueError: a tensor is a forward-mode dual number; torch would silently drop its tangent.
    """
    return is_eager(tensors) and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


def is_plain() -> bool:
    """Check that no capture, dispatch mode or functorch transform is active for the current call."""
    return not (_is_transformed() or _C._len_torch_dispatch_stack())


def is_transformed_by_func() -> bool:
    """Check whether `torch.func` transforms the current call.

    Example:
        >>> is_transformed_by_func()
        False
    """
    return not is_compiling() and _functorch.peek_interpreter_stack() is not None and not _C._len_torch_dispatch_stack()


def is_captured() -> bool:
    """Check whether a popgeo capture or a CUDA graph, and no transform, records the current call.

    Example:
        >>> is_captured()
        False
    """
    is_recorded = is_capturing() or any(map(_is_of_popgeo, _get_current_dispatch_mode_stack()))
    return is_recorded and not _is_traced()


def transforms_around() -> str:
    """Return the name of the transform, trace or fake mode of the current call, or an empty string.

    A mode that only observes operations, such as a count of FLOPs, is no transform.

    Example:
        >>> torch.func.vmap(lambda x: print(transforms_around()) or x)(torch.ones(2))
        torch.func.vmap
        tensor([1., 1.])
    """
    functorch, modes = _functorch.peek_interpreter_stack(), _get_current_dispatch_mode_stack()
    if functorch is not None:
        return f"torch.func.{functorch.key().name.lower()}"
    if forward_ad._current_level >= 0:
        return "torch.autograd.forward_ad.dual_level"
    if _C._get_tracing_state() is not None:
        return "torch.jit.trace"
    changing = [mode for mode in modes if mode.is_infra_mode() or _is_of_popgeo(mode)]
    return f"{type(changing[-1]).__module__}.{type(changing[-1]).__name__}" if changing else ""


def _is_of_popgeo(mode: TorchDispatchMode) -> bool:
    return type(mode).__module__.startswith("popgeo.")


def makes_plans() -> bool:
    """Check whether layers share plans of their edges: in plain eager calls and in CUDA graphs, which run as written.

    popgeo's own captures need no plans, because the compiler makes them.

    Example:
        >>> makes_plans()
        True
    """
    return is_plain() or (is_capturing() and not _is_traced())


def is_capturing() -> bool:
    """Check whether a CUDA graph is captured, so that no value can be read.

    The first check is needed because torch's function for it is missing in builds for the processor alone, and raises
    in builds for CUDA if the computer has no driver.

    Example:
        >>> is_capturing()
        False
    """
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _is_transformed() -> bool:
    return _is_traced() or is_capturing()


def _is_traced() -> bool:
    return (
        is_compiling()
        or _functorch.peek_interpreter_stack() is not None
        or _C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
    )


def is_eager(arguments: Sequence[Any]) -> bool:
    """Check that torch's dispatcher would add only autograd to a call with these arguments.

    Raises:
        ValueError: a tensor is a forward-mode dual number; torch would silently drop its tangent.
    """
    if not is_plain():
        if not is_compiling() and forward_ad._current_level >= 0:
            _refuse_forward_mode(arguments)
        return False
    for argument in arguments:
        kind = type(argument)
        if kind is Tensor or kind is Parameter:
            # They occur in torch.autograd.grad(..., is_grads_batched=True) and in the backward pass of torch.func.vjp.
            if _functorch.is_legacy_batchedtensor(argument) or _functorch.is_functorch_wrapped_tensor(argument):
                return False
        elif isinstance(argument, Tensor):
            return False
    return True


def _refuse_forward_mode(arguments: Sequence[Any]) -> None:
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        refuse_forward_mode()


def refuse_forward_mode(*of_an_op: Any) -> NoReturn:
    """Raise a ValueError: popgeo's ops have derivatives in reverse mode only."""
    raise ValueError(
        "popgeo's ops have no forward-mode derivative. Use reverse mode: torch.autograd.grad, or for a Hessian "
        "torch.func.jacrev(torch.func.jacrev(f)) instead of torch.func.hessian(f)."
    )

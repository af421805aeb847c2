"""Statistics of half-precision tensors, computed in float32 and rounded once at the end, as in torch."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)
_P = ParamSpec("_P")


def in_float32(function: Callable[_P, Tensor]) -> Callable[_P, Tensor]:
    """Decorate a function so that it computes half-precision arguments in float32 and rounds its result back.

    In float16 a sum or a count beyond 65,504 would be infinite. A function that writes to its argument `out` writes to
    the tensor that the caller passed.

    Example:
        >>> mean = in_float32(lambda x: x.sum() / len(x))
        >>> mean(torch.full((70_000,), 2.0, dtype=torch.float16))
        tensor(2., dtype=torch.float16)
    """
    names = [*inspect.signature(function).parameters]

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> Tensor:
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.is_floating_point()]
        if all(tensor.dtype not in HALVES for tensor in given):
            return function(*args, **kwargs)
        named: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
        out = named.get("out")
        wide = {name: _widened(argument) for name, argument in named.items()}
        of_wide: Callable[..., Tensor] = function
        result = of_wide(**wide)
        if out is not None:
            out.copy_(wide["out"])
        if out is not None and result is wide["out"]:
            return out
        return result.to(functools.reduce(torch.promote_types, (tensor.dtype for tensor in given)))

    return run


def _widened(argument: Any) -> Any:
    return argument.float() if isinstance(argument, Tensor) and argument.dtype in HALVES else argument

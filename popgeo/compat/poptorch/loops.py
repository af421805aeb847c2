"""Loops and branches that stay loops and branches in the compiled program."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from popgeo.capture import control_flow
from popgeo.compat.account import honoured


def for_loop(count: int, body: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """Calls a body over and over, each time with what it returned before; one operation of the compiled program.

    Args:
        count: How often.
        body: Takes as many tensors as it returns, of the same shapes and types.
        inputs: What the first call is given.

    Raises:
        ValueError: the inputs are no list of tensors, the body returns other shapes, or a gradient would have to pass.

    Example:
        >>> import torch
        >>> for_loop(10, lambda x: x * 2, [torch.tensor([1.0])])
        [tensor([1024.])]
    """
    _require_tensors(inputs, "poptorch.for_loop expects input tensors (inputs) to be a list of tensors")
    honoured("for_loop", "the body is written down once and counted as often as it runs")
    return control_flow.for_loop(count, body, inputs)


def cond(
    condition: Tensor,
    then_body: Callable[..., Any],
    then_inps: list[Tensor],
    else_body: Callable[..., Any],
    else_inps: list[Tensor],
) -> list[Tensor]:
    """Calls one of two bodies, as a tensor of one element tells at each run.

    Raises:
        ValueError: the inputs are no lists of tensors, the bodies return different shapes, or a gradient would have to
            pass.

    Example:
        >>> import torch
        >>> x = torch.tensor([3.0])
        >>> cond(x > 0, lambda x: x, [x], lambda x: -x, [x])
        [tensor([3.])]
    """
    for given in (then_inps, else_inps):
        _require_tensors(given, "poptorch.cond expects then_inps and else_inps to be lists of tensors")
    honoured("cond", "one branch runs; the more expensive one is counted")
    return control_flow.cond(condition, then_body, then_inps, else_body, else_inps)


def _require_tensors(given: Any, says: str) -> None:
    if not isinstance(given, list | tuple):
        raise ValueError(f"{says}. (Object is not list)")
    for position, tensor in enumerate(given):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{says}. (Object contained in list at index {position} is not torch.tensor)")

"""Finds everything in a model that is not static, at once."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from popgeo.ipu.compiler.record import Recorder
from popgeo.ipu.compiler.static_shapes import Problem


def check_static(model: Callable[..., Any], *inputs: Any, **named_inputs: Any) -> list[Problem]:
    """Lists each place in a model where a shape, or the path taken, depends on the data.

    A copy of the model looks at the inputs once, without a gradient; nothing is compiled, and neither the model nor
    torch's random numbers change.

    Args:
        model: A module, or any function of tensors, called like `model(*inputs, **named_inputs)`.

    Returns:
        One `Problem` for each line and operation, in the order in which they are met; empty when nothing is in the way.

    Example:
        >>> class Positive(nn.Module):
        ...     def forward(self, x):
        ...         largest = x.max().item()
        ...         return x[x > 0] / largest
        >>> [problem.operation for problem in check_static(Positive(), torch.tensor([1.0, -2.0]))]
        ['_local_scalar_dense', 'index']
    """
    found: dict[tuple[str, str], Problem] = {}

    def note(problem: Problem) -> None:
        found.setdefault((problem.operation, problem.source), problem)

    model = copy.deepcopy(model)
    recorder = Recorder(check_static.__code__, note, keeps_state=False)
    hooks = recorder.follow_modules(model) if isinstance(model, nn.Module) else []
    with torch.random.fork_rng(devices=[]), torch.no_grad(), recorder:
        model(*inputs, **named_inputs)
    for hook in hooks:
        hook.remove()
    return list(found.values())

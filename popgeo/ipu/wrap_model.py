"""The doors for models: a model and choices in, a model with a compiled step out."""

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo.ipu.compiled_model import CompiledModel
from popgeo.ipu.options import Options


def training_model(
    model: nn.Module,
    options: Options | None = None,
    optimizer: Optimizer | None = None,
    *,
    learning_rate: Callable[[int], float] | None = None,
) -> CompiledModel:
    """Wraps a model so that a call runs forward, backward and the optimizer's update as one compiled step.

    The model returns its loss, alone or among other results; the first call compiles the step for the shapes it gets.

    Args:
        model: Its parameters and buffers are trained in place. The step is in the mode, `model.train()` or
            `model.eval()`, that the model is in now, whatever its mode is later.
        options: Device iterations, accumulation, replicas and what a call returns.
        optimizer: Any of `torch.optim` that needs no closure, over parameters of the model; SGD with a rate of 0.01 by
            default. Schedulers may change it between calls.
        learning_rate: The rate of each update, counted from 0, instead of the optimizer's own.

    Returns:
        The model to call like `model`.

    Raises:
        ValueError: the model is wrapped already, or the optimizer holds none of its parameters.

    Example:
        >>> class Line(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.slope = nn.Parameter(torch.zeros(1))
        ...     def forward(self, x, y):
        ...         return (self.slope * x - y).square().mean()
        >>> line = Line()
        >>> step = training_model(line, optimizer=torch.optim.SGD(line.parameters(), lr=0.1))
        >>> x = torch.tensor([1.0, 2.0])
        >>> losses = [float(step(x, 3 * x)) for _ in range(20)]
        >>> round(losses[0], 2), round(losses[-1], 2), round(line.slope.item(), 2)
        (22.5, 0.0, 3.0)
    """
    _refuse_wrapped(model)
    chosen = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    return CompiledModel(model, options or Options(), chosen, learning_rate)


def inference_model(model: nn.Module, options: Options | None = None) -> CompiledModel:
    """Wraps a model so that a call runs its compiled forward pass.

    Args:
        model: Shares its parameters, so it follows a training model of the same module. The step is in the mode,
            `model.train()` or `model.eval()`, that the model is in now.
        options: Device iterations, replicas and what a call returns.

    Returns:
        The model to call like `model`.

    Raises:
        ValueError: the options ask for gradient accumulation.

    Example:
        >>> linear = nn.Linear(3, 2).eval()
        >>> torch.equal(inference_model(linear)(torch.ones(4, 3)), linear(torch.ones(4, 3)))
        True
    """
    _refuse_wrapped(model)
    chosen = options or Options()
    if chosen.gradient_accumulation != 1:
        raise ValueError(
            "Inference has no gradients to accumulate; set Options.gradient_accumulation to 1, not "
            f"{chosen.gradient_accumulation}."
        )
    return CompiledModel(model, chosen, None, None)


def _refuse_wrapped(model: nn.Module) -> None:
    if isinstance(model, CompiledModel):
        raise ValueError(
            "The model is wrapped already; wrap the module itself, or call destroy() on the first wrapper."
        )
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"Expected a torch.nn.Module, got {type(model).__name__}; use popgeo.ipu.compile for a function."
        )

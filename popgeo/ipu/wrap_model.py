"""The doors: a model or a function and options in, its compiled step for the simulated machine out."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo.did_you_mean import names_arguments
from popgeo.engine.compile_step import require_module
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_recipe import Recipe
from popgeo.ipu.ipu_machine import IpuMachine
from popgeo.ipu.options import Options
from popgeo.ipu.target import IpuTarget


@names_arguments
def training_model(
    model: nn.Module,
    options: Options | None = None,
    optimizer: Optimizer | None = None,
    *,
    learning_rate: Callable[[int], float] | None = None,
) -> CompiledStep:
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
        ValueError: the model is wrapped already, the options name no machine, or, when the step is compiled, the
            optimizer holds none of the model's parameters.

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
    require_module(model)
    chosen = options or Options()
    trained = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    recipe = Recipe(
        function=model, optimizer=trained, options=chosen, learning_rate=learning_rate, machine=IpuMachine(chosen)
    )
    return CompiledStep(recipe)


def inference_model(model: nn.Module, options: Options | None = None) -> CompiledStep:
    """Wraps a model so that a call runs its compiled forward pass.

    Args:
        model: Shares its parameters, so it follows a training model of the same module. The step is in the mode,
            `model.train()` or `model.eval()`, that the model is in now.
        options: Device iterations, replicas and what a call returns.

    Returns:
        The model to call like `model`.

    Raises:
        ValueError: the options name no machine, or ask for gradient accumulation.

    Example:
        >>> linear = nn.Linear(3, 2).eval()
        >>> torch.equal(inference_model(linear)(torch.ones(4, 3)), linear(torch.ones(4, 3)))
        True
    """
    require_module(model)
    chosen = options or Options()
    return CompiledStep(Recipe(function=model, options=chosen, machine=IpuMachine(chosen)))


def compile(
    function: Callable[..., Any], example_inputs: Sequence[Any], target: IpuTarget | None = None, *, strict: bool = True
) -> CompiledStep:
    """Compiles a function of tensors for the shapes of example inputs.

    Args:
        function: Any function, or a module, whose parameters are then used in place.
        example_inputs: Its positional arguments; tensors, or nests of them.
        target: The machine to compile for; a Bow IPU by default.
        strict: Refuse what needs more memory than a tile has; with False only the report tells.

    Returns:
        What to call like the function; its `report` accounts for a call.

    Raises:
        DynamicShapeError: a shape depends on data.
        OutOfTileMemory: a tile needs more memory than it has; `strict=False` compiles it all the same.

    Example:
        >>> double = compile(lambda x: 2 * x, [torch.ones(3)])
        >>> double(torch.arange(3.0)), double.report.total.ops
        (tensor([0., 2., 4.]), 1)
    """
    options = Options(target=target or IpuTarget.bow(), strict=strict)
    recipe = Recipe(function=function, options=options, machine=IpuMachine(options))
    return CompiledStep(recipe, Replicas((0,), 1)).compile(*example_inputs)

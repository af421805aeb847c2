"""Functions that return the compiled step of a model or a function for the simulated machine."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo.did_you_mean import names_arguments
from popgeo.engine.backend import backend_of, devices_of
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
    """Wrap a model so that a call runs forward, backward and the optimizer's update as one compiled step.

    The model returns its loss, alone or among other results. The first call compiles the step for its shapes.

    Args:
        model: The model, whose parameters and buffers are trained in place. The step keeps the model's present mode,
            `model.train()` or `model.eval()`. If the model is on a GPU, the step runs there and has no report.
        options: Number of steps in a call, gradient accumulation, replicas, returned results, and the machine that
            the report is for; see `Options`. Default: `Options()`, one step per call.
        optimizer: Any optimizer of `torch.optim` without a closure, over parameters of the model. Schedulers may change
            it between calls. Default: SGD with a rate of 0.01.
        learning_rate: A function from the number of an update, counted from 0, to its learning rate. Default: the
            optimizer's own rate.

    Returns:
        A compiled step. Call it with the model's arguments, or with a batch, which fills the arguments by name.

    Raises:
        ValueError: the model is a compiled step; the options are `StepOptions`, which have no machine; or, at the first
            call, the optimizer has no parameter of the model.

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
        function=model,
        optimizer=trained,
        options=chosen,
        backend=backend_of(None, devices_of(model)),
        learning_rate=learning_rate,
        machine=IpuMachine(chosen),
    )
    return CompiledStep(recipe)


def inference_model(model: nn.Module, options: Options | None = None) -> CompiledStep:
    """Wrap a model so that a call runs its compiled forward pass.

    Args:
        model: The model. The step shares its parameters, so it sees each update of a training model of the same
            module. The step keeps the model's present mode, `model.train()` or `model.eval()`. If the model is on a
            GPU, the step runs there and has no report.
        options: Number of batches in a call, replicas, returned results, and the machine that the report is for; see
            `Options`. Default: `Options()`, one batch per call.

    Returns:
        A compiled step. Call it with the model's arguments, or with a batch, which fills the arguments by name.

    Raises:
        ValueError: the options are `StepOptions`, which have no machine, or have gradient accumulation.

    Example:
        >>> linear = nn.Linear(3, 2).eval()
        >>> torch.allclose(inference_model(linear)(torch.ones(4, 3)), linear(torch.ones(4, 3)))
        True
    """
    require_module(model)
    chosen = options or Options()
    backend = backend_of(None, devices_of(model))
    return CompiledStep(Recipe(function=model, options=chosen, backend=backend, machine=IpuMachine(chosen)))


def compile(
    function: Callable[..., Any], example_inputs: Sequence[Any], target: IpuTarget | None = None, *, strict: bool = True
) -> CompiledStep:
    """Compile a function of tensors for the shapes of example inputs.

    Args:
        function: Any function, or a module, whose parameters are used in place.
        example_inputs: Its positional arguments; tensors, or nests of tensors.
        target: The machine to compile for. Default: a Bow IPU.
        strict: Whether to raise if a tile needs more memory than it has. With False, the report shows the excess.

    Returns:
        A compiled step; call it like the function. Its `report` accounts for a call.

    Raises:
        DynamicShapeError: a shape depends on data.
        OutOfTileMemory: a tile needs more memory than it has, and `strict` is True.

    Example:
        >>> double = compile(lambda x: 2 * x, [torch.ones(3)])
        >>> double(torch.arange(3.0)), double.report.total.ops
        (tensor([0., 2., 4.]), 1)
    """
    options = Options(target=target or IpuTarget.bow(), strict=strict)
    recipe = Recipe(function=function, options=options, machine=IpuMachine(options))
    return CompiledStep(recipe, Replicas((0,), 1)).compile(*example_inputs)

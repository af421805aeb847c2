"""Compiles a model's training step, or its forward pass, for this computer.

Both functions return a `CompiledStep`, in `compiled_step.py`; `bind_step.py` captures and binds the step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from popgeo.did_you_mean import names_arguments
from popgeo.engine.backend import Backend, backend_of, devices_of
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.step_options import StepOptions
from popgeo.engine.step_recipe import Recipe


@names_arguments
def compile_step(
    model: nn.Module,
    optimizer: Optimizer,
    example_batch: Any = None,
    backend: Backend | str | None = None,
    *,
    options: StepOptions | None = None,
    learning_rate: Callable[[int], float] | None = None,
    autocast: torch.dtype | None = None,
    average: AveragedModel | None = None,
) -> CompiledStep:
    """Compile a model so that a call runs forward pass, backward pass and the optimizer's update as one step.

    `popgeo.training_model` does the same for a simulated machine too; this function has no machine and no report.
    Weights and optimizer state stay in `model` and `optimizer`. In a call with one batch of graphs, each argument of
    the model is the batch attribute of the same name, or a count such as `num_graphs`. A model with a single argument
    gets the batch itself if the argument is called `batch`, or if the batch has no attribute of that name.

    Args:
        model: The model; its parameters and buffers are trained in place. The step has the model's present mode,
            `model.train()` or `model.eval()`. The model returns its loss, alone or among other results; if several
            scalars could be the loss, `popgeo.identity_loss` marks it.
        optimizer: An optimizer that needs no closure, from `torch.optim` or elsewhere. On a GPU it must be
            capturable, and its groups are set to `capturable`. A scheduler may change its learning rate between calls.
        example_batch: Example arguments of a call: a tuple of positional arguments, a dictionary of named ones, or a
            single argument, such as a batch. The step does not run on them. Default: the first call compiles.
        backend: `"cpu"`, `"inductor"` or `"cuda"`. Default: `"cuda"` for a model on a GPU, otherwise `"cpu"`.
        options: Device iterations, accumulation, loss scaling and others. The machine of a `popgeo.Options` is ignored.
        learning_rate: Learning rate of each update, counted from 0. Default: the optimizer's own.
        autocast: `torch.bfloat16` or `torch.float16`: type of the forward pass for operations in which it is safe.
            Default: the type of the weights.
        average: A moving average of the model's weights, `torch.optim.swa_utils.AveragedModel(model, ...)`, which each
            update brings up to date; on a GPU within the CUDA graph. Default: none.

    Returns:
        The compiled step, which is called like `model`.

    Raises:
        ValueError: the backend or its device is missing, the optimizer cannot be captured, or a shape depends on data.

    Example:
        >>> line = nn.Linear(1, 1)
        >>> class Squares(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.line = line
        ...     def forward(self, x, y):
        ...         return (self.line(x) - y).square().mean()
        >>> model, x = Squares(), torch.tensor([[1.0], [2.0]])
        >>> step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, 3 * x))
        >>> losses = [float(step(x, 3 * x)) for _ in range(300)]
        >>> round(losses[-1], 2), round(line.weight.item(), 1)
        (0.0, 3.0)
        >>> step
        CompiledStep(Squares: training, backend cpu, 300 calls, ...)
    """
    if optimizer is None:
        raise ValueError("optimizer is None. To compile a forward pass alone, call popgeo.compile_forward.")
    recipe = Recipe(
        function=require_module(model),
        optimizer=optimizer,
        options=options or StepOptions(),
        backend=backend_of(backend, devices_of(model)),
        learning_rate=learning_rate,
        autocast=autocast,
        average=average,
    )
    return _compile_for(CompiledStep(recipe), example_batch)


def compile_forward(
    model: nn.Module,
    example_batch: Any = None,
    backend: Backend | str | None = None,
    *,
    options: StepOptions | None = None,
    autocast: torch.dtype | None = None,
) -> CompiledStep:
    """Compile a model so that a call runs its forward pass.

    Args:
        model: The model; see `compile_step`.
        example_batch: Example arguments of a call; see `compile_step`.
        backend: `"cpu"`, `"inductor"` or `"cuda"`. Default: `"cuda"` for a model on a GPU, otherwise `"cpu"`.
        options: Device iterations and others, without gradient accumulation.
        autocast: Type of the forward pass; see `compile_step`.

    Returns:
        The compiled forward pass, which is called like `model`.

    Raises:
        ValueError: the backend or its device is missing, a shape depends on data, or the options have gradient
            accumulation.

    Example:
        >>> linear = nn.Linear(3, 2).eval()
        >>> torch.allclose(compile_forward(linear)(torch.ones(4, 3)), linear(torch.ones(4, 3)))
        True
    """
    recipe = Recipe(
        function=require_module(model),
        options=options or StepOptions(),
        backend=backend_of(backend, devices_of(model)),
        autocast=autocast,
    )
    return _compile_for(CompiledStep(recipe), example_batch)


def _compile_for(step: CompiledStep, example_batch: Any) -> CompiledStep:
    if example_batch is None:
        return step
    args, kwargs = as_call(example_batch)
    return step.compile(*args, **kwargs)


def as_call(batch: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return positional and named arguments of a call from a tuple, a dictionary, or a single argument.

    Example:
        >>> as_call({"x": 1}), as_call((1, 2)), as_call(3)
        (((), {'x': 1}), ((1, 2), {}), ((3,), {}))
    """
    if isinstance(batch, Mapping):
        return (), batch
    return (batch if isinstance(batch, tuple) else (batch,)), {}


def require_module(model: nn.Module) -> nn.Module:
    """Return the model if it can be compiled.

    Raises:
        ValueError: it is compiled already, or it is not a module.
    """
    if isinstance(model, CompiledStep):
        raise ValueError("The model is wrapped already; wrap the module itself, or call reset() on the first wrapper.")
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model is a {type(model).__name__}, not a torch.nn.Module; for a function use popgeo.ipu.compile."
        )
    return model

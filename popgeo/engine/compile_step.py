"""The doors for the hardware that people own: a model's step, or its forward pass alone, compiled.

What they give is `CompiledStep`, in `compiled_step.py`; how a step is captured and bound is in `bind_step.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo.did_you_mean import names_arguments
from popgeo.engine.backend import Backend, backend_of
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.step_options import StepOptions
from popgeo.engine.step_recipe import Recipe


@names_arguments
def compile_step(
    model: nn.Module,
    optimizer: Optimizer,
    example_batch: Any = None,
    backend: Backend | str = Backend.CPU,
    *,
    options: StepOptions | None = None,
    learning_rate: Callable[[int], float] | None = None,
    autocast: torch.dtype | None = None,
) -> CompiledStep:
    """Wraps a model so that a call runs forward, backward and the optimizer's update as one compiled step.

    It is called like `popgeo.training_model` and returns the same; there is no machine model and no report. Weights
    and the optimizer's state stay where `model` and `optimizer` show them. A call with one batch of graphs gives the
    model the attributes that its arguments are named after, and `num_graphs` and the like; a model whose only argument
    is `batch`, or has a name of no attribute, gets the batch itself.

    Args:
        model: Its parameters and buffers are trained in place; for `"cuda"` they lie on the GPU. The step is in the
            mode, `model.train()` or `model.eval()`, that the model is in now. It returns its loss, alone or among other
            results; where several scalars could be it, `popgeo.identity_loss` marks one.
        optimizer: Any that needs no closure, of `torch.optim` or of others; for `"cuda"` one that can be captured,
            whose groups are then made `capturable`. A scheduler may change its learning rate between calls.
        example_batch: What a call will be given: a tuple of positional arguments, a dictionary of named ones, or the
            only one, such as a batch. Nothing is run on it. None leaves compiling to the first call.
        backend: `"cpu"`, `"inductor"` or `"cuda"`.
        options: Device iterations, accumulation, loss scaling and others: a `StepOptions`; of a `popgeo.Options` the
            machine is not looked at.
        learning_rate: The rate of each update, counted from 0, instead of the optimizer's own.
        autocast: `torch.bfloat16` or `torch.float16`: the type that the forward pass computes in if that is safe.

    Returns:
        What to call like `model`.

    Raises:
        ValueError: there is no such backend or device, the optimizer cannot be captured, or a shape depends on data.

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
        raise ValueError("optimizer is None; a forward pass alone is compiled by popgeo.compile_forward.")
    recipe = Recipe(
        function=require_module(model),
        optimizer=optimizer,
        options=options or StepOptions(),
        backend=backend_of(backend),
        learning_rate=learning_rate,
        autocast=autocast,
    )
    return _compiled_for(CompiledStep(recipe), example_batch)


def compile_forward(
    model: nn.Module,
    example_batch: Any = None,
    backend: Backend | str = Backend.CPU,
    *,
    options: StepOptions | None = None,
    autocast: torch.dtype | None = None,
) -> CompiledStep:
    """Wraps a model so that a call runs its forward pass, compiled; see `compile_step` for the arguments.

    Raises:
        ValueError: see `compile_step`; or the options ask for gradient accumulation.

    Example:
        >>> linear = nn.Linear(3, 2).eval()
        >>> torch.equal(compile_forward(linear)(torch.ones(4, 3)), linear(torch.ones(4, 3)))
        True
    """
    recipe = Recipe(
        function=require_module(model), options=options or StepOptions(), backend=backend_of(backend), autocast=autocast
    )
    return _compiled_for(CompiledStep(recipe), example_batch)


def _compiled_for(step: CompiledStep, example_batch: Any) -> CompiledStep:
    """The step, compiled for an example if there is one."""
    if example_batch is None:
        return step
    args, kwargs = as_call(example_batch)
    return step.compile(*args, **kwargs)


def as_call(batch: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of a call: parts of a tuple by position, of a dictionary by name; anything else alone.

    Example:
        >>> as_call({"x": 1}), as_call((1, 2)), as_call(3)
        (((), {'x': 1}), ((1, 2), {}), ((3,), {}))
    """
    if isinstance(batch, Mapping):
        return (), batch
    return (batch if isinstance(batch, tuple) else (batch,)), {}


def require_module(model: nn.Module) -> nn.Module:
    """A model to compile, as it was given.

    Raises:
        ValueError: it is compiled already, or no module.
    """
    if isinstance(model, CompiledStep):
        raise ValueError("The model is wrapped already; wrap the module itself, or call reset() on the first wrapper.")
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model is a {type(model).__name__}, not a torch.nn.Module; for a function use popgeo.ipu.compile."
        )
    return model

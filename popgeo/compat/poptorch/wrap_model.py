"""`trainingModel`, `inferenceModel` and `load`: a module in, an executor out."""

import os
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from popgeo.compat.poptorch import enums, executable_file
from popgeo.compat.poptorch.errors import as_poptorch_errors, check, said
from popgeo.compat.poptorch.executor import PoplarExecutor
from popgeo.compat.poptorch.options import Options
from popgeo.compat.poptorch.wrapped_module import is_wrapped


def trainingModel(
    model: nn.Module | PoplarExecutor, options: Options | None = None, optimizer: Optimizer | None = None
) -> PoplarExecutor:
    """Wraps a module so that a call runs forward, backward and the optimizer's update.

    Args:
        model: Trained in place. Its own `training` is that of now whenever the step is compiled, its submodules' that
            of the first call, as PopTorch has it.
        options: Device iterations, accumulation, replicas and what a call returns; frozen from here on.
        optimizer: SGD with a rate of 0.01 by default.

    Raises:
        RuntimeError: a training model holds the module already.

    Example:
        >>> import torch
        >>> class Line(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.slope = nn.Parameter(torch.zeros(1))
        ...     def forward(self, x, y):
        ...         return (self.slope * x - y).square().mean()
        >>> line = Line()
        >>> step = trainingModel(line, optimizer=torch.optim.SGD(line.parameters(), lr=0.1))
        >>> x = torch.tensor([1.0, 2.0])
        >>> for _ in range(20):
        ...     loss = step(x, 3 * x)
        >>> round(line.slope.item(), 2)
        3.0
    """
    module: Any = model.model if isinstance(model, PoplarExecutor) else model
    check(not is_wrapped(module), said("trainingModel"), RuntimeError)
    return PoplarExecutor(model=module, options=options, training=True, optimizer=optimizer)


def inferenceModel(model: nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    """Wraps a module so that a call runs its forward pass; it shares the weights of a training model of the module.

    Raises:
        Error: the options ask for gradient accumulation.

    Example:
        >>> import torch
        >>> inferenceModel(nn.ReLU())(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    module: Any = model.model if isinstance(model, PoplarExecutor) else model
    return PoplarExecutor(model=module, options=options, training=False)


def load(filename: str | os.PathLike[str], edit_opts_fn: Callable[[Options], object] | None = None) -> PoplarExecutor:
    """The model that `compileAndExport` wrote, compiled, with the weights in the file.

    Args:
        filename: Load only files from those whom you trust: they are pickles.
        edit_opts_fn: Changes the options before the model is compiled.

    Raises:
        Error: the file is of something else.
        AssertionError: the module was not exported; it is a ValueError too.
    """
    with as_poptorch_errors():
        file = executable_file.read(filename)
    check(file.model is not None and file.training is not None, said("load", filename=filename))
    assert file.model is not None
    if file.options.connection_type == enums.ConnectionType.Never:  # it was compiled elsewhere, to be run here
        file.options.connectionType(enums.ConnectionType.Always)
    if edit_opts_fn is not None:
        edit_opts_fn(file.options)
    executor = PoplarExecutor(file.model, file.options, bool(file.training), optimizer=file.optimizer)
    executor.loadExecutable(os.fspath(filename))
    return executor

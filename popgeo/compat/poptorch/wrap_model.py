"""`trainingModel`, `inferenceModel` and `load`, which make an executor of a module or a file."""

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
    """Wrap a module so that a call runs the forward pass, the backward pass and the optimizer's update.

    Args:
        model: Module to train in place. Compilations use the module's present training mode, and the mode that its
            submodules have at the first call, as PopTorch does.
        options: Device iterations, accumulation, replicas and output mode. The executor freezes them.
        optimizer: Optimizer. Default: SGD with a learning rate of 0.01.

    Raises:
        RuntimeError: A training model already holds the module.

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
    """Wrap a module so that a call runs its forward pass. It shares the weights of a training model of the module.

    Raises:
        Error: The options ask for gradient accumulation.

    Example:
        >>> import torch
        >>> inferenceModel(nn.ReLU())(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    module: Any = model.model if isinstance(model, PoplarExecutor) else model
    return PoplarExecutor(model=module, options=options, training=False)


def load(filename: str | os.PathLike[str], edit_opts_fn: Callable[[Options], object] | None = None) -> PoplarExecutor:
    """Load a model that `compileAndExport` wrote, compile it, and use the weights in the file.

    Args:
        filename: File to load. It is a pickle: load only files from sources that you trust.
        edit_opts_fn: Function that changes the options before the compilation.

    Raises:
        Error: Another program wrote the file.
        AssertionError: The module was not exported. The error is also a ValueError.
    """
    with as_poptorch_errors():
        file = executable_file.read(filename)
    check(file.model is not None and file.training is not None, said("load", filename=filename))
    assert file.model is not None
    if file.options.connection_type == enums.ConnectionType.Never:  # compiled offline, now to be run
        file.options.connectionType(enums.ConnectionType.Always)
    if edit_opts_fn is not None:
        edit_opts_fn(file.options)
    executor = PoplarExecutor(file.model, file.options, bool(file.training), optimizer=file.optimizer)
    executor.loadExecutable(os.fspath(filename))
    return executor

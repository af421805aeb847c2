"""Compiles any function of tensors."""

import inspect
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from torch import nn

from popgeo.capture.capture_step import capture_step
from popgeo.capture.pytree import first_difference, flatten, same, templates, unflatten
from popgeo.engine import micro_batches
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_runner import StepRunner
from popgeo.ipu.compiled import Usage, report
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Report
from popgeo.ipu.step_cost import Assessment, assess
from popgeo.ipu.target import IpuTarget


class Executable:
    """A compiled function; called like it. Made by `compile`."""

    def __init__(self, function: Callable[..., Any], example_inputs: Sequence[Any], target: IpuTarget) -> None:
        start = time.perf_counter()
        self._signature = _signature(function)
        self._options = Options(target=target)
        self._name = getattr(function, "__name__", type(function).__name__)
        tensors, self._arguments = flatten(dict(self._signature.bind(*example_inputs).arguments))

        def call(inputs: Sequence[Any]) -> Any:
            bound = self._signature.bind_partial()
            bound.arguments.update(unflatten(self._arguments, inputs))
            return function(*bound.args, **bound.kwargs)

        module = function if isinstance(function, nn.Module) else nn.Module()
        arguments = list(zip(micro_batches.names(self._arguments), tensors, strict=True))
        self.step = capture_step(module, arguments, call, graph_data=list(templates(self._arguments)))
        self._module = module
        self._usage = Usage(compile_seconds=time.perf_counter() - start)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result.

        Raises:
            ValueError: an argument differs from the example; the message names it.
        """
        tensors, structure = flatten(dict(self._signature.bind(*args, **kwargs).arguments))
        if not same(self._arguments, structure):
            raise ValueError(
                f"{first_difference(self._arguments, structure)}. Compile the function anew for other shapes."
            )
        with self._usage.of_a_call():
            results = self._runner.run(tensors)
        return unflatten(self.step.result, results, list(templates(structure)))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._name}: {len(self.step.graph.ops):,} operations "
            f"for {self._options.target.name}, {self._usage.calls:,} calls)"
        )

    @cached_property
    def _runner(self) -> StepRunner:
        """Made when it is needed: compiling many functions for their reports takes no memory for values."""
        return StepRunner(self.step, self._module, self._options, None, Replicas((0,), 1))

    @cached_property
    def assessment(self) -> Assessment:
        """Cycles and memory on the target, worked out when first asked for."""
        return assess(self.step, self._options.target)

    @property
    def report(self) -> Report:
        """The account of one call, without running the function."""
        return report(self._runner, self.assessment, self._usage, self._options)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """A function's parameters; those of torch's own functions are known by position only."""
    try:
        return inspect.signature(function)
    except ValueError:
        inputs = inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)
        return inspect.Signature([inputs])


def compile(
    function: Callable[..., Any],
    example_inputs: Sequence[Any],
    target: IpuTarget | None = None,
    *,
    strict: bool = True,
) -> Executable:
    """Compiles a function of tensors for the shapes of example inputs.

    Args:
        function: Any function, or a module, whose parameters are then used where they are.
        example_inputs: Its positional arguments; tensors, or nests of them.
        target: The machine to compile for; a Bow IPU by default.
        strict: Refuse what needs more memory than a tile has; with False only the report tells.

    Returns:
        What to call like the function; `Executable.report` accounts for a call.

    Raises:
        DynamicShapeError: a shape depends on data.
        OutOfTileMemory: a tile needs more memory than it has; `strict=False` compiles it all the same.

    Example:
        >>> import torch
        >>> double = compile(lambda x: 2 * x, [torch.ones(3)])
        >>> double(torch.arange(3.0)), double.report.total.ops
        (tensor([0., 2., 4.]), 1)
    """
    executable = Executable(function, example_inputs, target or IpuTarget.bow())
    if strict:
        executable.assessment.require_fit()
    return executable

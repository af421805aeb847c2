"""Compiles any function of tensors."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.captured_step import CapturedStep
from popgeo.engine.bound_call import BoundCall
from popgeo.engine.replicas import Replicas
from popgeo.ipu.compiled import Compiled
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Report
from popgeo.ipu.step_cost import Assessment
from popgeo.ipu.systems.share import is_shared, share_of
from popgeo.ipu.target import IpuTarget


class Executable:
    """A compiled function; called like it. Made by `compile`."""

    def __init__(self, function: Callable[..., Any], example_inputs: Sequence[Any], options: Options) -> None:
        start = time.perf_counter()
        self._name = getattr(function, "__name__", type(function).__name__)
        arguments = bind(function, *example_inputs)
        step = capture_step(function, arguments)
        call = BoundCall(
            signature=arguments.signature,
            arguments=arguments.structure,
            result=step.result,
            remedy="Compile the function anew for other shapes.",
        )
        self.compiled = Compiled(
            call=call,
            step=step,
            module=function if isinstance(function, nn.Module) else nn.Module(),
            options=options,
            update=None,
            replicas=Replicas((0,), 1),
            share=share_of(function, arguments, options) if is_shared(function, options.target) else None,
        )
        self.compiled.usage.compile_seconds = time.perf_counter() - start

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result.

        Raises:
            ValueError: an argument differs from the example; the message names it.
        """
        return self.compiled(args, kwargs)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._name}: {len(self.step.graph.ops):,} operations "
            f"for {self.compiled.options.target.name}, {self.compiled.usage.calls:,} calls)"
        )

    @property
    def step(self) -> CapturedStep:
        """What runs."""
        return self.compiled.step

    @property
    def assessment(self) -> Assessment:
        """Cycles and memory on the target, worked out when first asked for."""
        return self.compiled.assessment

    @property
    def report(self) -> Report:
        """The account of one call, without running the function."""
        return self.compiled.report()


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
    executable = Executable(function, example_inputs, Options(target=target or IpuTarget.bow(), strict=strict))
    executable.compiled.require_fit()
    return executable

"""Contexts and control flow of a model: names, MultiConv, autocast, loops and branches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from popgeo.capture import control_flow
from popgeo.capture.recorder import active_recorder
from popgeo.compat.account import honoured, ignored, recorded
from popgeo.compat.poptorch.enums import MultiConvPlanType
from popgeo.compat.poptorch.errors import Error, check


@contextmanager
def Attribute(**attributes: Any) -> Iterator[None]:
    """Give a block's operations attributes for Graphcore's compiler. They have no effect here.

    Example:
        >>> with Attribute(__outline={"layer": "embedding"}):
        ...     pass
    """
    ignored(f"Attribute({', '.join(sorted(attributes))})", "it configures Graphcore's compiler")
    yield


@contextmanager
def NameScope(name: str) -> Iterator[None]:
    """List a block's operations under this name in the report of a compiled model.

    Example:
        >>> with NameScope("attention"):
        ...     pass
    """
    check(isinstance(name, str), "Parameter to NameScope must be a string", ValueError)
    recorder = active_recorder()
    modules = [""] if recorder is None else recorder.modules
    modules.append(f"{modules[-1]}.{name}" if modules and modules[-1] else name)
    try:
        yield
    finally:
        modules.pop()


def _setter(kinds: Any, refusal: str) -> Callable[["MultiConv", Any], "MultiConv"]:
    """Return a method that checks a value for all convolutions, or one for each. It has no effect here."""

    def choose(self: "MultiConv", value: Any) -> "MultiConv":
        listed = list(value) if isinstance(value, list | tuple) else [value]
        known = all(one in kinds if isinstance(kinds, tuple) else isinstance(one, kinds) for one in listed)
        check(value is None or (listed and known), refusal)
        return self

    choose.__doc__ = "Set one value for all convolutions, or a list with one value for each."
    return choose


class MultiConv:
    """Context for convolutions that run in parallel on an IPU. Here they run in sequence, with equal results.

    Raises:
        Error: While a model is compiled, the context is nested or holds no convolution.

    Example:
        >>> with MultiConv().availableMemoryProportions(0.5).cycleBackOff(0.1):
        ...     pass
    """

    availableMemoryProportions = _setter(float, "Invalid available memory proportion!")
    partialsTypes = _setter(
        (torch.float32, torch.float16), "Invalid partials types. Expecting torch.float or torch.half"
    )
    enableConvDithering = _setter(bool, "value must be bool or list of bools")
    planType = _setter(MultiConvPlanType, "Invalid plan type!")
    perConvReservedTiles = _setter(int, "Invalid number of reserved tiles!")
    cycleBackOff = _setter(float, "Invalid cycle back off!")
    _inside = 0  # depth of nesting

    def __enter__(self) -> None:
        recorded("MultiConv", "convolutions are planned one after the other")
        recorder = active_recorder()
        check(recorder is None or not MultiConv._inside, "Nested poptorch.MultiConv is not supported.", Error)
        MultiConv._inside += 1
        self._first = 0 if recorder is None else len(recorder.page.ops)

    def __exit__(self, kind: object, *error: object) -> None:
        MultiConv._inside -= 1
        recorder = active_recorder()
        if kind is None and recorder and not any("conv" in op.target for op in recorder.page.ops[self._first :]):
            raise Error("Unexpected end_multi_conv: a poptorch.MultiConv needs a convolution inside.")


class Channel:
    """Named group of trace points, which are not recorded.

    Example:
        >>> with Channel("training").tracepoint("epoch"):
        ...     pass
    """

    def __init__(self, name: str) -> None:
        self.name = name
        ignored("profiling.Channel", "Graphcore's profiler is not used here; executor.report shows the cycles")

    @contextmanager
    def tracepoint(self, name: str) -> Iterator[None]:
        """Run the block, which would be one event of a trace."""
        yield

    def instrument(self, obj: Any, *methods: str) -> Any:
        """Return the object unchanged. Its methods would be events of a trace."""
        return obj


class autocast(torch.autocast):
    """Context or decorator that runs products and convolutions in float16, by torch's rules.

    Args:
        enabled: Whether to use float16. Default: True.

    Example:
        >>> with autocast():
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float16
    """

    def __init__(self, enabled: bool = True, *args: Any) -> None:
        super().__init__("cpu", dtype=torch.float16, enabled=enabled)
        honoured("autocast", "torch's rules decide which operations run in float16")


def for_loop(count: int, body: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """Call a body repeatedly, each time with its last results, as one operation of the compiled program.

    Args:
        count: Number of calls.
        body: Function that returns as many tensors as it takes, of the same shapes and types.
        inputs: Arguments of the first call.

    Raises:
        ValueError: `inputs` is not a list of tensors, the body returns other shapes, or a gradient would pass through.

    Example:
        >>> import torch
        >>> for_loop(10, lambda x: x * 2, [torch.tensor([1.0])])
        [tensor([1024.])]
    """
    _require_tensors(inputs, "poptorch.for_loop expects input tensors (inputs) to be a list of tensors")
    honoured("for_loop", "the body is captured once and counted for each run")
    return control_flow.for_loop(count, body, inputs)


def cond(
    condition: Tensor, then_body: Callable[..., Any], then_inps: list[Tensor], else_body: Callable[..., Any],
    else_inps: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    """Call one of two bodies. A tensor of one element decides at each run.

    Raises:
        ValueError: The inputs are not lists of tensors, the bodies return different shapes, or a gradient would pass
            through.

    Example:
        >>> import torch
        >>> x = torch.tensor([3.0])
        >>> cond(x > 0, lambda x: x, [x], lambda x: -x, [x])
        [tensor([3.])]
    """
    for given in (then_inps, else_inps):
        _require_tensors(given, "poptorch.cond expects then_inps and else_inps to be lists of tensors")
    honoured("cond", "one branch runs; the report counts the more expensive one")
    return control_flow.cond(condition, then_body, then_inps, else_body, else_inps)


def _require_tensors(given: Any, says: str) -> None:
    check(isinstance(given, list | tuple), f"{says}. (Object is not list)", ValueError)
    for position, tensor in enumerate(given):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{says}. (Object contained in list at index {position} is not torch.tensor)")

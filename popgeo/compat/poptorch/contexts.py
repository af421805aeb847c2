"""What surrounds some of a model's operations: names, convolutions side by side, float16, loops and branches."""

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
    """A context whose operations were to carry attributes for Graphcore's compiler, which is not used here.

    Example:
        >>> with Attribute(__outline={"layer": "embedding"}):
        ...     pass
    """
    ignored(f"Attribute({', '.join(sorted(attributes))})", "it speaks to Graphcore's own compiler")
    yield


@contextmanager
def NameScope(name: str) -> Iterator[None]:
    """Operations inside are listed under this name in the report of a compiled model.

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
    """A method that takes a choice of a kind for all convolutions, or one for each; it changes nothing here."""

    def choose(self: "MultiConv", value: Any) -> "MultiConv":
        listed = list(value) if isinstance(value, list | tuple) else [value]
        known = all(one in kinds if isinstance(kinds, tuple) else isinstance(one, kinds) for one in listed)
        check(value is None or (listed and known), refusal)
        return self

    choose.__doc__ = "One choice for all convolutions, or one for each."
    return choose


class MultiConv:
    """A context whose convolutions were to run side by side; here they run one after the other, with equal results.

    Raises:
        Error: where a model is compiled, it stands inside another one or holds no convolution.

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
    _inside = 0  # how many of them the program is in

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


class autocast(torch.autocast):
    """A context, or a decorator, in which products and convolutions run in float16, by torch's own rules.

    Args:
        enabled: Whether they do.

    Example:
        >>> with autocast():
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float16
    """

    def __init__(self, enabled: bool = True, *args: Any) -> None:
        super().__init__("cpu", dtype=torch.float16, enabled=enabled)
        honoured("autocast", "torch's rules say which operations run in float16")


def for_loop(count: int, body: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """Calls a body over and over, each time with what it returned before; one operation of the compiled program.

    Args:
        count: How often.
        body: Takes as many tensors as it returns, of the same shapes and types.
        inputs: What the first call is given.

    Raises:
        ValueError: the inputs are not a list of tensors, or the body returns other shapes, or a gradient would have to
            pass.

    Example:
        >>> import torch
        >>> for_loop(10, lambda x: x * 2, [torch.tensor([1.0])])
        [tensor([1024.])]
    """
    _require_tensors(inputs, "poptorch.for_loop expects input tensors (inputs) to be a list of tensors")
    honoured("for_loop", "the body is written down once and counted as often as it runs")
    return control_flow.for_loop(count, body, inputs)


def cond(
    condition: Tensor, then_body: Callable[..., Any], then_inps: list[Tensor], else_body: Callable[..., Any],
    else_inps: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    """Calls one of two bodies, as a tensor of one element tells at each run.

    Raises:
        ValueError: the inputs are not lists of tensors, the bodies return different shapes, or a gradient would have to
            pass.

    Example:
        >>> import torch
        >>> x = torch.tensor([3.0])
        >>> cond(x > 0, lambda x: x, [x], lambda x: -x, [x])
        [tensor([3.])]
    """
    for given in (then_inps, else_inps):
        _require_tensors(given, "poptorch.cond expects then_inps and else_inps to be lists of tensors")
    honoured("cond", "one branch runs; the more expensive one is counted")
    return control_flow.cond(condition, then_body, then_inps, else_body, else_inps)


def _require_tensors(given: Any, says: str) -> None:
    check(isinstance(given, list | tuple), f"{says}. (Object is not list)", ValueError)
    for position, tensor in enumerate(given):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{says}. (Object contained in list at index {position} is not torch.tensor)")

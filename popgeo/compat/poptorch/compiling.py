"""Functions around a compilation: hooks, checks for IPU hardware, and a machine with PopTorch's rules."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from itertools import dropwhile
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.one_type import OneType
from popgeo.compat.poptorch.errors import CheckFailed, Error, check, said
from popgeo.ipu.ipu_machine import IpuMachine, IpuPlan
from popgeo.ipu.options import Options
from popgeo.ipu.stage_choices import EACH_BLOCK, Schedule
from popgeo.ipu.systems.stage_planner import TooFewMicroBatchesError, num_pipeline_stages

Hook = Callable[[], Any]
_BEFORE: "OrderedDict[int, Hook]" = OrderedDict()
_AFTER: "OrderedDict[int, Hook]" = OrderedDict()
_COMPILING: ContextVar[bool] = ContextVar("compiling", default=False)


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Call a function before each compilation, until the returned handle is removed.

    Raises:
        RuntimeError: `hook` is not callable.

    Example:
        >>> handle = registerPreCompileHook(lambda: None)
        >>> handle.remove()
    """
    return _register(_BEFORE, hook, "Pre-compile")


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Call a function after each compilation, also a failed one, until the returned handle is removed.

    Raises:
        RuntimeError: `hook` is not callable.

    Example:
        >>> handle = registerPostCompileHook(lambda: None)
        >>> handle.remove()
    """
    return _register(_AFTER, hook, "Post-compile")


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Check whether this number of IPUs exists: always False.

    Example:
        >>> ipuHardwareIsAvailable()
        False
    """
    return False


def ipuHardwareVersion() -> int:
    """Return the generation of the IPU.

    Raises:
        AssertionError: Always, since no IPU exists here. The error is also a ValueError.
    """
    raise CheckFailed("No IPU hardware available on this system; models run on this computer, the machine is modelled.")


def isRunningOnIpu() -> bool:
    """Return True while a model is compiled, so that a model can have a branch for the machine.

    Example:
        >>> isRunningOnIpu()
        False
    """
    return _COMPILING.get()


@contextmanager
def compiling() -> Iterator[None]:
    """Run a block that compiles a model, between the hooks. Its code runs as on the machine."""
    for hook in list(_BEFORE.values()):
        hook()
    token = _COMPILING.set(True)
    try:
        yield
    finally:
        _COMPILING.reset(token)
        for hook in list(_AFTER.values()):
            hook()


def _register(hooks: "OrderedDict[int, Hook]", hook: Hook, kind: str) -> RemovableHandle:
    check(callable(hook), f"{kind} hook must be callable", RuntimeError)
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


class IpuDeviceMode(TorchFunctionMode):
    """Mode that maps the device `ipu` to the processor while a model is compiled.

    Example:
        >>> with IpuDeviceMode():
        ...     torch.ones(2, device="ipu:0").device.type
        'cpu'
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is Tensor.ipu:  # type: ignore[attr-defined]
            return args[0]
        if func is torch.device:
            return _on_processor(func(*args, **(kwargs or {})))
        named = {name: _on_processor(given) for name, given in (kwargs or {}).items()}
        return func(*map(_on_processor, args), **named)


def _on_processor(given: Any) -> Any:
    """Return the processor if an argument is a device named `ipu`, otherwise the argument."""
    name = given.type if isinstance(given, torch.device) else given if isinstance(given, str) else ""
    return torch.device("cpu") if name.partition(":")[0] == "ipu" else given


def _refuse_ipu(*args: Any, **kwargs: Any) -> Any:
    raise Error(said("ipu tensors"))


# Functions that make tensors call one of these, which torch does not have for this device.
_OF_IPU = torch.library.Library("aten", "IMPL", "IPU")
for _name in ("empty.memory_format", "empty_strided"):
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_name}", "IPU"):  # an installed PopTorch has them
        _OF_IPU.impl(_name, _refuse_ipu)


class PoptorchMachine(IpuMachine):
    """Machine of the options' IPUs, with PopTorch's rules.

    Args:
        options: Options, see `IpuMachine`.
        upcasts: Whether a product of float16 and float32 is computed in float32.
    """

    def __init__(self, options: Options, upcasts: bool) -> None:
        super().__init__(options)
        self._upcasts = upcasts

    def what_decides(self, optimizer: Any) -> list[object]:
        """Return the values that decide a compilation, including PopTorch's rules."""
        return [*super().what_decides(optimizer), "PopTorch", self._upcasts]

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Run a block that captures the model's code as on the machine."""
        with nullcontext() if isRunningOnIpu() else compiling(), OneType(self._upcasts), IpuDeviceMode():
            yield

    def plan(self, *of_a_step: Any) -> IpuPlan:
        """Return the plan of a captured step on the IPUs.

        Raises:
            Error: The pipeline has too few micro-batches, or an operation is in no block.
        """
        try:
            planned = super().plan(*of_a_step)
        except TooFewMicroBatchesError as error:
            stages = error.stages
            raise Error(said("plan", needed=2 * stages - 1, stages=stages, more=stages - 1, error=error)) from error
        runs = None if planned.stages is None or planned.update is not None else planned.pipeline
        if runs and runs.schedule is Schedule.LOCK_STEP and num_pipeline_stages(runs) > runs.micro_batches:
            raise Error(said("plan 2", stages=num_pipeline_stages(runs)))
        if planned.options.stages == EACH_BLOCK:
            _require_blocks(planned.step)
        return planned


def _require_blocks(step: CapturedStep) -> None:
    """Raise an error for an operation between or after blocks, since each block is a stage."""
    forward = (op for op in step.graph.ops if op.phase == "forward" and op.source)
    lost = next((op for op in dropwhile(lambda op: op.block is None, forward) if op.block is None), None)
    if lost is not None:
        raise Error(f"No active Block: {lost.source} runs outside of every block, which AutoStage.AutoIncrement needs.")

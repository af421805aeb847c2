"""What surrounds a compilation: hooks, whether an IPU runs, and the IPUs by PopTorch's rules."""

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
    """Calls a function before each compilation, until `remove` of the handle.

    Raises:
        RuntimeError: it is not a function.

    Example:
        >>> handle = registerPreCompileHook(lambda: None)
        >>> handle.remove()
    """
    return _register(_BEFORE, hook, "Pre-compile")


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Calls a function after each compilation, also one that fails, until `remove` of the handle.

    Raises:
        RuntimeError: it is not a function.

    Example:
        >>> handle = registerPostCompileHook(lambda: None)
        >>> handle.remove()
    """
    return _register(_AFTER, hook, "Post-compile")


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Whether there are that many IPUs: never.

    Example:
        >>> ipuHardwareIsAvailable()
        False
    """
    return False


def ipuHardwareVersion() -> int:
    """The generation of the IPU.

    Raises:
        AssertionError: there is no such program; it is a ValueError, too.
    """
    raise CheckFailed("No IPU hardware available on this system; models run on this computer, the machine is modelled.")


def isRunningOnIpu() -> bool:
    """True while a training or inference model is compiled, so that a model can have a branch for the machine.

    Example:
        >>> isRunningOnIpu()
        False
    """
    return _COMPILING.get()


@contextmanager
def compiling() -> Iterator[None]:
    """The block compiles a model: it runs between the hooks, and its code is the machine's."""
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
    """A mode in which a model finds the device `ipu`: it is the processor that runs the model.

    Example:
        >>> with IpuIsHere():
        ...     torch.ones(2, device="ipu:0").device.type
        'cpu'
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is Tensor.ipu:  # type: ignore[attr-defined]  # torch has it
            return args[0]
        if func is torch.device:
            return _here(func(*args, **(kwargs or {})))
        named = {name: _here(given) for name, given in (kwargs or {}).items()}
        return func(*map(_here, args), **named)


def _here(given: Any) -> Any:
    """Return the processor if an argument is a device named `ipu`, otherwise the argument."""
    name = given.type if isinstance(given, torch.device) else given if isinstance(given, str) else ""
    return torch.device("cpu") if name.partition(":")[0] == "ipu" else given


def _refuse_ipu(*args: Any, **kwargs: Any) -> Any:
    raise Error(said("ipu tensors"))


# Every function that makes a tensor calls one of them, and torch itself knows no such device.
_OF_IPU = torch.library.Library("aten", "IMPL", "IPU")
for _name in ("empty.memory_format", "empty_strided"):
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_name}", "IPU"):  # PopTorch itself has them
        _OF_IPU.impl(_name, _refuse_ipu)


class PoptorchMachine(IpuMachine):
    """The IPUs that options describe, with PopTorch's rules.

    Args:
        options: See `IpuMachine`.
        upcasts: Whether a product of float16 and float32 is one of float32.
    """

    def __init__(self, options: Options, upcasts: bool) -> None:
        super().__init__(options)
        self._upcasts = upcasts

    def what_decides(self, optimizer: Any) -> list[object]:
        """That it is compiled by PopTorch's rules, too."""
        return [*super().what_decides(optimizer), "PopTorch", self._upcasts]

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """The model's code is the machine's, also if it has changed and is compiled again."""
        with nullcontext() if isRunningOnIpu() else compiling(), OneType(self._upcasts), IpuDeviceMode():
            yield

    def plan(self, *of_a_step: Any) -> IpuPlan:
        """How the IPUs would run a captured step.

        Raises:
            Error: there are too few micro-batches for its pipeline, or something runs in no block.
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
    """Refuses what runs between blocks or after them, where each is to be a stage by its own number."""
    forward = (op for op in step.graph.ops if op.phase == "forward" and op.source)
    lost = next((op for op in dropwhile(lambda op: op.block is None, forward) if op.block is None), None)
    if lost is not None:
        raise Error(f"No active Block: {lost.source} runs outside of every block, which AutoStage.AutoIncrement needs.")

"""What surrounds a compilation: functions that a program wants called, and the answer to whether an IPU runs."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch.utils.hooks import RemovableHandle

from popgeo.compat.poptorch.errors import CheckFailed

__all__ = ["ipuHardwareIsAvailable", "ipuHardwareVersion", "isRunningOnIpu"]
__all__ += ["registerPostCompileHook", "registerPreCompileHook"]

Hook = Callable[[], Any]
_BEFORE: "OrderedDict[int, Hook]" = OrderedDict()
_AFTER: "OrderedDict[int, Hook]" = OrderedDict()
_COMPILING: ContextVar[bool] = ContextVar("compiling", default=False)


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Calls a function before each compilation, until `remove` of the handle.

    Raises:
        RuntimeError: it is no function.

    Example:
        >>> handle = registerPreCompileHook(lambda: None)
        >>> handle.remove()
    """
    return _register(_BEFORE, hook, "Pre-compile")


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Calls a function after each compilation, also one that fails, until `remove` of the handle.

    Raises:
        RuntimeError: it is no function.

    Example:
        >>> handle = registerPostCompileHook(lambda: None)
        >>> handle.remove()
    """
    return _register(_AFTER, hook, "Post-compile")


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Whether there are so many IPUs: never.

    Example:
        >>> ipuHardwareIsAvailable()
        False
    """
    return False


def ipuHardwareVersion() -> int:
    """The generation of the IPU.

    Raises:
        AssertionError: there is none; it is a ValueError too.
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
    if not callable(hook):
        raise RuntimeError(f"{kind} hook must be callable")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle

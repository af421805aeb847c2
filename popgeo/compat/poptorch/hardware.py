"""What a program asks about IPUs: there are none, but a model being compiled takes its branch for one."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from popgeo.compat.poptorch.errors import CheckFailed

_COMPILING: ContextVar[bool] = ContextVar("compiling", default=False)


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
    raise CheckFailed(
        "No IPU hardware available on this system; models run on this computer, and the machine is modelled."
    )


def isRunningOnIpu() -> bool:
    """True while a training or inference model is compiled, so that a model can have a branch for the machine.

    Example:
        >>> isRunningOnIpu()
        False
    """
    return _COMPILING.get()


@contextmanager
def compiling() -> Iterator[None]:
    """The block runs a model's code for the machine."""
    token = _COMPILING.set(True)
    try:
        yield
    finally:
        _COMPILING.reset(token)

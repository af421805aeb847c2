"""The errors of PopTorch, which are also those that Python's users catch, and each carries its message."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import popgeo
from popgeo.capture.held_state import ReplacedStateError
from popgeo.compat.sentences import said

_PACKAGE = os.path.dirname(popgeo.__file__) + os.sep


class Error(RuntimeError, ValueError):
    """What PopTorch refuses.

    Attributes:
        message: What is wrong, without the kind in front of it.
        type: The kind that PopTorch gives it.
        location: Where in PopTorch's own code it arose; empty here.

    Example:
        >>> try:
        ...     raise Error("The model has not been compiled.")
        ... except RuntimeError as error:
        ...     print(error, "|", error.message)
        'poptorch_py_error': The model has not been compiled. | The model has not been compiled.
    """

    type = "poptorch_py_error"
    location = ""

    def __init__(self, message: str) -> None:
        super().__init__(f"'{self.type}': {message}")
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (self.message,)


class RecoverableError(Error):
    """A failure of the machine that goes away when it is reset; it never arises here.

    Attributes:
        recovery_action: What has to be reset.
    """

    recovery_action = "FULL_RESET"


class UnrecoverableError(Error):
    """A failure of the machine that stays; it never arises here."""


class CheckFailed(AssertionError, ValueError):
    """What PopTorch asserts of its arguments; caught as either."""


class Frozen(AttributeError, ValueError):
    """A change of options that are in use."""


def check(condition: object, message: str) -> None:
    """Raises what PopTorch's assertions raise, also where Python runs without them.

    Raises:
        CheckFailed: the condition does not hold.

    Example:
        >>> check(True, "never said")
    """
    if not condition:
        raise CheckFailed(message)


@contextmanager
def as_poptorch_errors() -> Iterator[None]:
    """What popgeo refuses while the block runs is raised as PopTorch's `Error`; the model's own errors stay.

    Raises:
        Error: popgeo raised a ValueError, or found NaN or infinity.

    Example:
        >>> with as_poptorch_errors():
        ...     raise ValueError("this line is the user's own")
        Traceback (most recent call last):
            ...
        ValueError: this line is the user's own
    """
    try:
        yield
    except (Error, CheckFailed):
        raise
    except TypeError as error:  # torch names the tensors of a capture by their class
        error.args = tuple(str(part).replace("FakeTensor", "Tensor") for part in error.args)
        raise
    except ReplacedStateError as error:
        raise Error(_of_buffers(error)) from error
    except (ValueError, FloatingPointError) as error:
        if not _is_ours(error.__traceback__):
            raise
        raise Error(str(error).replace("reset()", "destroy()")) from error  # by PopTorch's name of it


def _of_buffers(error: ReplacedStateError) -> str:
    """PopTorch's words for a buffer that the model has put away, before popgeo's own."""
    told = []
    for name, what in error.buffers.items():
        if what == "removed":
            told.append(f"Buffer {name} is removed from the model when calling the forward method.")
        else:
            told.append(said("of_buffers", name=name))
    return " ".join([*told, str(error)])


def _is_ours(trace: TracebackType | None) -> bool:
    """Whether the line that raised an error belongs to popgeo."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)

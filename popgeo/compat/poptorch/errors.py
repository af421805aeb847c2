"""Errors of PopTorch as subclasses of Python's errors, PopTorch's long messages, and its log."""

import csv
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any

from popgeo.capture.held_state import ReplacedStateError
from popgeo.compat.account import ignored

_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"


def rows_of(table: Path) -> list[dict[str, str]]:
    """Return the rows of a table, each by the names of its columns."""
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


_SENTENCES = {row["of"]: row["sentence"] for row in rows_of(Path(__file__).parent.with_name("sentences.csv"))}


def said(of: str, /, **values: Any) -> str:
    """Return a message from `sentences.csv` with its values.

    Args:
        of: Row of the table: the name of the function or class that raises the message, with a number after the first.
        values: Values by their names in the message.

    Example:
        >>> said("getAnchoredTensor", short_name="grad")
        "Tensor 'grad' is not known, since popgeo has no names of PopART's tensors; return it from the model instead."
    """
    return _SENTENCES[of].format(**values)


class Error(RuntimeError, ValueError):
    """Error of PopTorch.

    Attributes:
        message: Message without PopTorch's kind in front.
        type: PopTorch's kind of the error.
        location: Location in PopTorch's code. Always empty here.

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
    """Error of a machine that a reset repairs. It never occurs here.

    Attributes:
        recovery_action: Part of the machine to reset.
    """

    recovery_action = "FULL_RESET"


class UnrecoverableError(Error):
    """Error of a machine that a reset does not repair. It never occurs here."""


class CheckFailed(AssertionError, ValueError):
    """Failed assertion of PopTorch about its arguments, as AssertionError and as ValueError."""


class FrozenOptionsError(AttributeError, ValueError):
    """Error for a change of frozen options."""


def check(condition: object, message: str, kind: type[Exception] = CheckFailed) -> None:
    """Raise an error if a condition is false.

    Args:
        condition: Condition to check.
        message: Message of the error.
        kind: Class of the error. Default: the error of PopTorch's assertions.

    Raises:
        CheckFailed: The condition is false, and `kind` is not given.

    Example:
        >>> check(True, "never said")
    """
    if not condition:
        raise kind(message)


@contextmanager
def as_poptorch_errors() -> Iterator[None]:
    """Convert popgeo's errors in a block to PopTorch's `Error`. The model's own errors stay unchanged.

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
    except TypeError as error:  # torch's messages name the class of captured tensors
        error.args = tuple(str(part).replace("FakeTensor", "Tensor") for part in error.args)
        raise
    except ReplacedStateError as error:
        sentences = [said(f"of_buffers {what}", name=name) for name, what in error.buffers.items()]
        raise Error(" ".join([*sentences, str(error)])) from error  # PopTorch's message first
    except (ValueError, FloatingPointError) as error:
        if not _is_ours(error.__traceback__):
            raise
        raise Error(str(error).replace("reset()", "destroy()")) from error  # PopTorch's name for it


def _is_ours(trace: TracebackType | None) -> bool:
    """Check whether the line that raised an error belongs to popgeo."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)


LEVELS = {"TRACE": 5, "DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERR": logging.ERROR}
LEVELS["OFF"] = logging.CRITICAL + 10
_OWN_WORDS = {"running_statistics_always_float": "runningStatisticsAlwaysFloat to"}
logger = _LOG = logging.getLogger("poptorch")
_NUMBERS = {0: "TRACE", 1: "DEBUG", 2: "INFO", 3: "WARN", 4: "ERR", 6: "OFF"}


def setLogLevel(level: str | int) -> None:
    """Set the lowest level of printed messages: TRACE, DEBUG, INFO, WARN, ERR or OFF, or PopTorch's number for it.

    Raises:
        ValueError: The name or number is unknown.

    Example:
        >>> setLogLevel("ERR")
        >>> setLogLevel("WARN")
    """
    if isinstance(level, int):
        check(level in _NUMBERS, f"Invalid log level integer {level}; it must be one of {[*_NUMBERS]}.", ValueError)
        level = _NUMBERS[level]
    *names, last = sorted(LEVELS)
    check(level in LEVELS, f"Unknown log level: {level}. Valid values are {', '.join(names)} and {last}", ValueError)
    _LOG.setLevel(LEVELS[level])


def setPopartLogLevel(level: str) -> None:
    """Accept a level of PopART's log, which has no effect.

    Raises:
        ValueError: PopTorch does not have a level of this name.

    Example:
        >>> setPopartLogLevel("WARN")
    """
    check(level in LEVELS, f"Level must be one of {', '.join(LEVELS)}; it is {level!r}.", ValueError)
    ignored("_logging.setPopartLogLevel", "PopART is not used here")


class _ToStderr(logging.Handler):
    """Log handler that looks up `sys.stderr` for each message, since notebooks and test runners replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        print(f"[poptorch] [{record.levelname.lower()}] {record.getMessage()}", file=sys.stderr)


def log_options(options: Mapping[str, Any]) -> None:
    """Print each option if the log level is DEBUG or TRACE.

    Example:
        >>> log_options({"device_iterations": 4})
    """
    if _LOG.isEnabledFor(logging.DEBUG):
        for line in option_lines(options):
            _LOG.debug("poptorch.Options %s", line)


def option_lines(options: Mapping[str, Any]) -> list[str]:
    """Return the log lines of options, with one line per entry of lists and dictionaries.

    Raises:
        Error: A value has a type that PopART does not accept.

    Example:
        >>> option_lines({"device_iterations": 4, "dotChecks": ["ALL"], "engineOptions": {"debug": True}})
        ['set device_iterations to value 4', 'added ALL to dotChecks', 'set engineOptions[debug] to true']
    """
    lines = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            lines += [f"set {name}[{key}] to {_text(name, part)}" for key, part in value.items()]
        elif isinstance(value, list | tuple | set):
            lines += [f"added {_text(name, part)} to {name}" for part in value]
        elif value is not None:
            lines.append(f"set {_OWN_WORDS.get(name, f'{name} to value')} {_text(name, value)}")
    return lines


def _text(name: str, value: Any) -> str:
    value = value.value if isinstance(value, Enum) else value
    if not isinstance(value, int | float | str | tuple | list | dict):
        raise Error(f"Unknown value type {type(value)} for option {name}.")
    return str(value).lower() if isinstance(value, bool) else str(value)


if not _LOG.handlers:
    _LOG.addHandler(_ToStderr())
setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL", "WARN"))

"""The errors of PopTorch, which are also those that Python's users catch, their long sentences, and its log."""

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
with Path(__file__).parent.with_name("sentences.csv").open(newline="") as _file:
    _SENTENCES = {row["of"]: row["sentence"] for row in csv.DictReader(_file)}


def said(of: str, /, **values: Any) -> str:
    """A sentence with its values.

    Args:
        of: The function that says it, or its class, and a number after the first one.
        values: By their names in the sentence.

    Example:
        >>> said("getAnchoredTensor", short_name="grad")
        "Tensor 'grad' is not known, since PopART's names are not; return it from the model instead."
    """
    return _SENTENCES[of].format(**values)


class Error(RuntimeError, ValueError):
    """What PopTorch refuses.

    Attributes:
        message: The error, without the kind in front of it.
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
        recovery_action: The part to reset.
    """

    recovery_action = "FULL_RESET"


class UnrecoverableError(Error):
    """A failure of the machine that stays; it never arises here."""


class CheckFailed(AssertionError, ValueError):
    """What PopTorch asserts of its arguments; caught as either."""


class FrozenOptionsError(AttributeError, ValueError):
    """A change of options that are in use."""


def check(condition: object, message: str, kind: type[Exception] = CheckFailed) -> None:
    """Raises an error of this kind, by default what PopTorch's assertions raise, if a condition does not hold.

    Raises:
        CheckFailed: the condition does not hold, and no other kind is given.

    Example:
        >>> check(True, "never said")
    """
    if not condition:
        raise kind(message)


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
        told = [said(f"of_buffers {what}", name=name) for name, what in error.buffers.items()]
        raise Error(" ".join([*told, str(error)])) from error  # PopTorch's words for it first
    except (ValueError, FloatingPointError) as error:
        if not _is_ours(error.__traceback__):
            raise
        raise Error(str(error).replace("reset()", "destroy()")) from error  # by PopTorch's name of it


def _is_ours(trace: TracebackType | None) -> bool:
    """Whether the line that raised an error belongs to popgeo."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)


LEVELS = {"TRACE": 5, "DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERR": logging.ERROR}
LEVELS["OFF"] = logging.CRITICAL + 10
_OWN_WORDS = {"running_statistics_always_float": "runningStatisticsAlwaysFloat to"}
logger = _LOG = logging.getLogger("poptorch")
_NUMBERS = {0: "TRACE", 1: "DEBUG", 2: "INFO", 3: "WARN", 4: "ERR", 6: "OFF"}


def setLogLevel(level: str | int) -> None:
    """Prints messages of this level and above: TRACE, DEBUG, INFO, WARN, ERR or OFF, or PopTorch's number for it.

    Raises:
        ValueError: another name or number.

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
    """Accepts a level of PopART's log.

    Raises:
        ValueError: PopTorch does not have a level of that name.

    Example:
        >>> setPopartLogLevel("WARN")
    """
    check(level in LEVELS, f"Level must be one of {', '.join(LEVELS)}; it is {level!r}.", ValueError)
    ignored("_logging.setPopartLogLevel", "there is no PopART that would print anything")


class _ToStderr(logging.Handler):
    """Prints to the standard error as it is at that time, which notebooks and test runners replace."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"[poptorch] [{record.levelname.lower()}] {record.getMessage()}", file=sys.stderr)


def log_options(options: Mapping[str, Any]) -> None:
    """Prints each option where the level of the log is DEBUG or TRACE.

    Example:
        >>> log_options({"device_iterations": 4})
    """
    if _LOG.isEnabledFor(logging.DEBUG):
        for line in option_lines(options):
            _LOG.debug("poptorch.Options %s", line)


def option_lines(options: Mapping[str, Any]) -> list[str]:
    """What is said of each option, lists and dictionaries entry by entry.

    Raises:
        Error: a value of a kind that PopART does not take.

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

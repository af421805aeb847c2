"""PopTorch's log: how much of it is printed, and the options of a model as its lines."""

import logging
import os
import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any

from popgeo.compat.account import ignored
from popgeo.compat.poptorch.errors import Error

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
        if level not in _NUMBERS:
            raise ValueError(f"Invalid log level integer {level}; it must be one of {sorted(_NUMBERS)}.")
        level = _NUMBERS[level]
    if level not in LEVELS:
        names = sorted(LEVELS)
        raise ValueError(f"Unknown log level: {level}. Valid values are {', '.join(names[:-1])} and {names[-1]}")
    _LOG.setLevel(LEVELS[level])


def setPopartLogLevel(level: str) -> None:
    """Accepts a level of PopART's log.

    Raises:
        ValueError: PopTorch does not have a level of that name.

    Example:
        >>> setPopartLogLevel("WARN")
    """
    if level not in LEVELS:
        raise ValueError(f"Level must be one of {', '.join(LEVELS)}; it is {level!r}.")
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

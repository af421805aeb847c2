"""The options of a model as lines of PopTorch's log."""

import logging
from collections.abc import Mapping
from enum import Enum
from typing import Any

from popgeo.compat.poptorch.errors import Error

_LOG = logging.getLogger("poptorch")
_OWN_WORDS = {"running_statistics_always_float": "runningStatisticsAlwaysFloat"}


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
        if name in _OWN_WORDS:
            lines.append(f"set {_OWN_WORDS[name]} to {_text(name, value)}")
        elif isinstance(value, Mapping):
            lines += [f"set {name}[{key}] to {_text(name, part)}" for key, part in value.items()]
        elif isinstance(value, list | tuple | set):
            lines += [f"added {_text(name, part)} to {name}" for part in value]
        elif value is not None:
            lines.append(f"set {name} to value {_text(name, value)}")
    return lines


def _text(name: str, value: Any) -> str:
    value = value.value if isinstance(value, Enum) else value
    if not isinstance(value, int | float | str | tuple | list | dict):
        raise Error(f"Unknown value type {type(value)} for option {name}.")
    return str(value).lower() if isinstance(value, bool) else str(value)

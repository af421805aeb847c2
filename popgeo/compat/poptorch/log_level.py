"""How much of PopTorch's log is printed."""

import logging
import os
import sys

TRACE, OFF = 5, logging.CRITICAL + 10
_LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": OFF,
}
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
    if level not in _LEVELS:
        names = sorted(_LEVELS)
        raise ValueError(f"Unknown log level: {level}. Valid values are {', '.join(names[:-1])} and {names[-1]}")
    _LOG.setLevel(_LEVELS[level])


class _ToStderr(logging.Handler):
    """Prints to the standard error as it is at that time, which notebooks and test runners replace."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"[poptorch] [{record.levelname.lower()}] {record.getMessage()}", file=sys.stderr)


_LOG = logging.getLogger("poptorch")
if not _LOG.handlers:
    _LOG.addHandler(_ToStderr())


setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL", "WARN"))

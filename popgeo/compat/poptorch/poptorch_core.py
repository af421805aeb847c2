"""Where PopTorch's own errors have their home, for programs that import them from there."""

from collections.abc import Mapping
from typing import Any

from popgeo.compat.poptorch.compiling import isRunningOnIpu as isCompilingWithDispatcher  # noqa: F401
from popgeo.compat.poptorch.errors import Error as Error
from popgeo.compat.poptorch.errors import RecoverableError as RecoverableError
from popgeo.compat.poptorch.errors import UnrecoverableError as UnrecoverableError
from popgeo.compat.poptorch.log import option_lines


def _validateOptions(options: Mapping[str, Any]) -> None:
    """Checks that every option has a value of a kind that PopART takes; which names PopART has is not known here.

    Args:
        options: What `Options.toDict` returns.

    Raises:
        Error: a tensor, or something else that is no number, text, list, set or dictionary; it is a RuntimeError too.

    Example:
        >>> _validateOptions({"autoRecomputation": 1})
    """
    option_lines(options)

"""Names and arguments that have changed: the old ones work for two minor versions and warn."""

import functools
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

# The old name, the new one, and the version in which the old one ends. A test fails when that version has come.
NAMES = {
    "popgeo.loader.LoaderChoices": ("popgeo.loader.EpochChoices", "0.3"),
    "popgeo.nn.Calculator": ("popgeo.deploy.Calculator", "0.3"),
    "popgeo.nn.EmbeddingCut": ("popgeo.nn.Cut", "0.3"),
}


def by_old_name(old: str) -> Any:
    """The object that `old`, a name in `NAMES`, now has another name for, after a FutureWarning."""
    new, end = NAMES[old]
    warnings.warn(f"{old} is now {new}; the old name ends with popgeo {end}.", FutureWarning, stacklevel=3)
    module, _, name = new.rpartition(".")
    return getattr(import_module(module), name)


def renamed_arguments(end: str, **new_names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function so that keywords by their old names still work, with a FutureWarning.

    Args:
        end: The version in which the old names end, two minor versions after the change.
        new_names: For each old keyword the new one.

    Raises:
        TypeError: a call has both the old and the new keyword; `renamed_arguments` itself never raises.

    Example:
        >>> @renamed_arguments("0.4", size="num_nodes")
        ... def slots(num_nodes):
        ...     return num_nodes + 1
        >>> slots(num_nodes=3)
        4
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            for old in new_names.keys() & named.keys():
                name, new = f"{function.__qualname__}({old}=...)", new_names[old]
                if new in named:
                    raise TypeError(f"{name} got {new!r} too, which is its new name. Pass {new!r} alone.")
                warnings.warn(f"{name} is now {new}=...; the old name ends with popgeo {end}.", FutureWarning, 2)
                named[new] = named.pop(old)
            return function(*args, **named)

        return call

    return decorate

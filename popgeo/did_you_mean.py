"""Misspelt arguments: an unknown keyword is told with the one that was meant, as Python 3.13 does."""

import functools
from collections.abc import Iterable
from difflib import get_close_matches
from inspect import signature
from typing import Any, TypeVar

Callable_ = TypeVar("Callable_", bound=Any)


def meant(name: str, known: Iterable[str]) -> str:
    """The question which of the known names one was meant to be; empty where none is like it.

    Example:
        >>> meant("num_node", ["num_nodes", "num_edges"])
        " Did you mean 'num_nodes'?"
    """
    return "".join(f" Did you mean {near!r}?" for near in get_close_matches(name, [*known], 1))


def names_arguments(made: Callable_) -> Callable_:
    """Decorates a function or a class: a call with an unknown keyword says which was meant, beside the name called.

    A switch, whose annotation is `bool`, is refused whatever is neither True nor False: `"no"` would mean yes.

    Raises:
        TypeError: the keyword is unknown.
        ValueError: a switch is neither True nor False.

    Example:
        >>> @names_arguments
        ... def pack(num_nodes): ...
        >>> pack(num_node=3)
        Traceback (most recent call last):
            ...
        TypeError: pack has no argument 'num_node'. Did you mean 'num_nodes'?
    """
    inner: Any = vars(made)["__init__"] if isinstance(made, type) else made
    known = {name: one.annotation for name, one in signature(inner).parameters.items() if name != "self"}

    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, given in kwargs.items():
            if name not in known:
                raise TypeError(f"{made.__name__} has no argument {name!r}.{meant(name, known)}")
            if known[name] is bool and not isinstance(given, bool):
                raise ValueError(f"{made.__name__}.{name} is {given!r}; it must be True or False.")
        return inner(*args, **kwargs)

    if inner is made:
        return call  # type: ignore[return-value]  # called like it
    made.__init__ = call
    return made

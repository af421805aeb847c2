"""Reports wrong arguments: for an unknown keyword it suggests the closest known one, as Python 3.13 does."""

import functools
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Any, TypeVar, get_args

Callable_ = TypeVar("Callable_", bound=Any)


def meant(name: str, known: Iterable[str]) -> str:
    """The question whether the closest known name was intended; empty if no name is close.

    Example:
        >>> meant("num_node", ["num_nodes", "num_edges"])
        " Did you mean 'num_nodes'?"
    """
    return "".join(f" Did you mean {near!r}?" for near in get_close_matches(name, [*known], 1))


def require_kinds(owner: str, annotations: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuses what is neither True nor False for a switch, as "no" would mean yes, and other numbers for whole ones.

    Args:
        owner: Whose arguments they are.
        annotations: What each may be.
        given: What each is.

    Raises:
        ValueError: an argument whose annotation is `bool` is something else, or one that may be an `int` is a fraction,
            a switch or a text.

    Example:
        >>> require_kinds("SchNet", {"hidden_channels": int}, {"hidden_channels": 64.0})
        Traceback (most recent call last):
            ...
        ValueError: SchNet.hidden_channels is 64.0; it must be a whole number.
    """
    for name, value in given.items():
        kinds = get_args(annotations.get(name)) or (annotations.get(name),)
        if kinds == (bool,) and not isinstance(value, bool):
            raise ValueError(f"{owner}.{name} is {value!r}; it must be True or False.")
        is_other = isinstance(value, float | bool | str | None) and type(value) not in kinds
        if int in kinds and float not in kinds and is_other:
            raise ValueError(f"{owner}.{name} is {value!r}; it must be a whole number.")


def names_arguments(made: Callable_) -> Callable_:
    """Decorates a function or a class: a call with an unknown keyword suggests the closest one and names it.

    Switches and whole numbers are checked, see `require_kinds`.

    Raises:
        TypeError: the keyword is unknown.
        ValueError: a switch is neither True nor False, or a number is not whole.

    Example:
        >>> @names_arguments
        ... def pack(num_nodes): ...
        >>> pack(num_node=3)
        Traceback (most recent call last):
            ...
        TypeError: pack has no argument 'num_node'. Did you mean 'num_nodes'?
    """
    inner: Any = vars(made)["__init__"] if isinstance(made, type) else made
    parameters = signature(inner).parameters
    known = {name: one.annotation for name, one in parameters.items()}
    is_open = any(one.kind is one.VAR_KEYWORD for one in parameters.values())

    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        owner = type(args[0]).__name__ if isinstance(made, type) else made.__name__
        for name in kwargs:
            if name not in known and not is_open:
                raise TypeError(f"{owner} has no argument {name!r}.{meant(name, known)}")
        given = {**dict(zip(known, args, strict=False)), **kwargs}
        require_kinds(owner, {name: kind for name, kind in known.items() if kind is bool}, given)
        try:
            result = inner(*args, **kwargs)
        except TypeError:
            require_kinds(owner, known, given)  # which says more than what stumbled over it
            raise
        require_kinds(owner, known, given)
        return result

    if inner is made:
        return call  # type: ignore[return-value]  # called like it
    made.__init__ = call
    return made

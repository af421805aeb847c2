"""Checks of arguments: an unknown keyword gets a suggestion, as in Python 3.13; a wrong kind of value is an error."""

import functools
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Any, TypeVar, get_args

Callable_ = TypeVar("Callable_", bound=Any)


def meant(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests the closest known name, or an empty text if no name is close.

    Example:
        >>> meant("num_node", ["num_nodes", "num_edges"])
        " Did you mean 'num_nodes'?"
    """
    return "".join(f" Did you mean {near!r}?" for near in get_close_matches(name, [*known], 1))


def require_kinds(owner: str, annotations: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check that switches are True or False, since "no" would count as true, and that counts are whole numbers.

    Args:
        owner: Name of the function or class, for messages.
        annotations: Annotation of each argument.
        given: Value of each argument.

    Raises:
        ValueError: The value of an argument with annotation `bool` is not a bool, or the value of an argument with
            annotation `int` is a fraction, a bool or a text.

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
    """Decorate a function or a class with a check of its arguments.

    A call with an unknown keyword suggests the closest known one. Switches and counts are checked by `require_kinds`.

    Raises:
        TypeError: A keyword is unknown.
        ValueError: A switch is neither True nor False, or a count is not a whole number.

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
            require_kinds(owner, known, given)  # a clearer message than the TypeError's
            raise
        require_kinds(owner, known, given)
        return result

    if inner is made:
        return call  # type: ignore[return-value]  # it has the signature of `made`
    made.__init__ = call
    return made

"""Checks of arguments: an unknown keyword gets a suggestion, as in Python 3.13; a wrong kind of value is an error."""

import functools
from collections.abc import Iterable
from difflib import get_close_matches
from inspect import signature
from typing import Any, TypeVar, get_args

Callable_ = TypeVar("Callable_", bound=Any)
_SYNONYMS = {"num_graphs": "batch_size"}


def meant(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests the closest known name, or an empty text if no name is close.

    Example:
        >>> meant("num_node", ["num_nodes", "num_edges"])
        " Did you mean 'num_nodes'?"
    """
    names = [*known]
    close = [_SYNONYMS[name]] if _SYNONYMS.get(name) in names else get_close_matches(name, names, 1)
    return "".join(f" Did you mean {near!r}?" for near in close)


def names_arguments(made: Callable_) -> Callable_:
    """Decorate a function or a class with a check of its arguments: names, switches and whole numbers.

    The signature gives names and types; for `**kwargs: Unpack[T]` the keys of `T` count.

    Raises:
        TypeError: A keyword is unknown.
        ValueError: A switch is neither True nor False, since "no" would count as true; or a count is a fraction, a
            switch or a text.

    Example:
        >>> @names_arguments
        ... def pack(num_nodes: int): ...
        >>> pack(num_node=3)
        Traceback (most recent call last):
            ...
        TypeError: pack has no argument 'num_node'. Did you mean 'num_nodes'?
        >>> pack(num_nodes=3.0)
        Traceback (most recent call last):
            ...
        ValueError: pack.num_nodes is 3.0; it must be a whole number.
    """
    inner: Any = vars(made)["__init__"] if isinstance(made, type) else made
    known: dict[str, Any] = {}
    is_open = False
    for name, parameter in signature(inner).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            known[name] = parameter.annotation
        elif typed := get_args(parameter.annotation):
            known |= typed[0].__annotations__
        else:
            is_open = True

    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        owner = type(args[0]).__name__ if isinstance(made, type) else made.__name__
        for name in kwargs:
            if name not in known and not is_open:
                raise TypeError(f"{owner} has no argument {name!r}.{meant(name, known)}")
        given = [(name, value, known.get(name)) for name, value in [*zip(known, args, strict=False), *kwargs.items()]]
        _check_kinds(owner, [one for one in given if all(kind in (int, type(None)) for kind in get_args(one[2]))])
        try:  # an argument that may also have other types has a check of its own, with a better message
            result = inner(*args, **kwargs)
        except TypeError:
            _check_kinds(owner, given)
            raise
        _check_kinds(owner, given)
        return result

    if inner is made:
        return call  # type: ignore[return-value]  # it has the signature of `made`
    made.__init__ = call
    return made


def _check_kinds(owner: str, given: Iterable[tuple[str, Any, Any]]) -> None:
    """Check that switches are True or False and counts are whole numbers; `given` has name, value and annotation."""
    for name, value, annotation in given:
        kinds = get_args(annotation) or (annotation,)
        if kinds == (bool,) and not isinstance(value, bool):
            raise ValueError(f"{owner}.{name} is {value!r}; it must be True or False.")
        is_other = isinstance(value, float | bool | str | None) and type(value) not in kinds
        if int in kinds and float not in kinds and is_other:
            or_none = " or None" if type(None) in kinds else ""
            raise ValueError(f"{owner}.{name} is {value!r}; it must be a whole number{or_none}.")

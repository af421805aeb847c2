"""Replaces attributes of other libraries' objects for as long as a block runs."""

import contextlib
from collections.abc import Iterator
from typing import Any

_NOTHING = object()


@contextlib.contextmanager
def replaced(holder: Any, name: str, part: Any) -> Iterator[None]:
    """Gives an object, a class or a module a different attribute while the block runs.

    Args:
        holder: The object; an attribute that it only inherits, or that is missing, is taken away again afterwards.
        name: The attribute.
        part: Its value inside the block.

    Example:
        >>> import math
        >>> with replaced(math, "tau", 6):
        ...     math.tau
        6
    """
    before = vars(holder).get(name, _NOTHING)
    setattr(holder, name, part)
    try:
        yield
    finally:
        if before is _NOTHING:
            delattr(holder, name)
        else:
            setattr(holder, name, before)

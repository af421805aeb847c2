"""Temporary replacement of attributes of other libraries' objects."""

import contextlib
from collections.abc import Iterator
from typing import Any

_NOTHING = object()


@contextlib.contextmanager
def replaced(holder: Any, name: str, part: Any) -> Iterator[None]:
    """Replace an attribute of an object, a class or a module while the block runs.

    Args:
        holder: The object. An attribute that was inherited or missing before is deleted afterwards.
        name: Name of the attribute.
        part: Value of the attribute inside the block.

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

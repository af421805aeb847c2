"""Functions that a program wants called before and after every compilation."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.hooks import RemovableHandle

Hook = Callable[[], Any]
_BEFORE: "OrderedDict[int, Hook]" = OrderedDict()
_AFTER: "OrderedDict[int, Hook]" = OrderedDict()


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Calls a function before each compilation, until `remove` of the handle.

    Raises:
        RuntimeError: it is no function.

    Example:
        >>> handle = registerPreCompileHook(lambda: None)
        >>> handle.remove()
    """
    return _register(_BEFORE, hook, "Pre-compile")


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Calls a function after each compilation, also one that fails, until `remove` of the handle.

    Raises:
        RuntimeError: it is no function.

    Example:
        >>> handle = registerPostCompileHook(lambda: None)
        >>> handle.remove()
    """
    return _register(_AFTER, hook, "Post-compile")


@contextmanager
def between_hooks() -> Iterator[None]:
    """The block compiles a model."""
    for hook in list(_BEFORE.values()):
        hook()
    try:
        yield
    finally:
        for hook in list(_AFTER.values()):
            hook()


def _register(hooks: "OrderedDict[int, Hook]", hook: Hook, kind: str) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"{kind} hook must be callable")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle

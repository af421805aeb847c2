"""How a model makes its filters where it is called: on a grid that is checked now and then, or at each edge."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn

_at_each_edge: ContextVar[bool] = ContextVar("filters at each edge", default=False)
_tables_stay: ContextVar[bool] = ContextVar("tables stay", default=False)


def filters_at_each_edge() -> AbstractContextManager[None]:
    """Models that are called in this context evaluate their filter networks at each edge.

    Example:
        >>> with filters_at_each_edge():
        ...     are_at_each_edge()
        True
    """
    return _switched_on(_at_each_edge)


def tables_stay() -> AbstractContextManager[None]:
    """What models compute from weights alone in this context is kept while the weights stay, and so costs nothing."""
    return _switched_on(_tables_stay)


@contextmanager
def _switched_on(switch: ContextVar[bool]) -> Iterator[None]:
    token = switch.set(True)
    try:
        yield
    finally:
        switch.reset(token)


def are_at_each_edge() -> bool:
    """Whether filter networks are evaluated at each edge here."""
    return _at_each_edge.get()


def do_tables_stay() -> bool:
    """Whether a table of filters is made once for many calls here."""
    return _tables_stay.get()


def parts_with_filters(module: nn.Module) -> list[Any]:
    """Return the parts of a module whose filters may be on a grid: `refine_filters` and `follow_filters` check it.

    Example:
        >>> parts_with_filters(nn.Linear(2, 3))
        []
    """
    return [part for part in module.modules() if hasattr(part, "follow_filters")]

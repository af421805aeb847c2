"""How a model makes its filters where it is called: on a grid that is checked now and then, or at each edge."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import nn

CHECKED_EVERY = 200  # calls of a model, or of a step that is compiled from it

_at_each_edge: ContextVar[bool] = ContextVar("filters at each edge", default=False)


@contextmanager
def filters_at_each_edge() -> Iterator[None]:
    """Models that are called in this context evaluate their filter networks at each edge.

    Example:
        >>> with filters_at_each_edge():
        ...     are_at_each_edge()
        True
    """
    token = _at_each_edge.set(True)
    try:
        yield
    finally:
        _at_each_edge.reset(token)


def are_at_each_edge() -> bool:
    """Whether filter networks are evaluated at each edge here."""
    return _at_each_edge.get()


def refine_filters(module: nn.Module) -> None:
    """Calls `refine_filters` of each part of a module that has it.

    Example:
        >>> refine_filters(nn.Linear(2, 3))
    """
    for part in module.modules():
        refine = getattr(part, "refine_filters", None)
        if refine is not None:
            refine()

"""Switches of filter networks and of other forms that a model chooses by the size of a batch.

By default a filter network is read from a table on a grid of distances if there are enough edges, and the table is
checked from time to time. Attention chooses its form by the number of nodes and graphs.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn

_at_each_edge: ContextVar[bool] = ContextVar("filters at each edge", default=False)
_tables_stay: ContextVar[bool] = ContextVar("tables stay", default=False)
_followed: ContextVar[bool] = ContextVar("a CUDA graph follows grids", default=False)
_of_any_shape: ContextVar[bool] = ContextVar("one form for batches of any shape", default=False)


def filters_at_each_edge() -> AbstractContextManager[None]:
    """Make models evaluate their filter networks at each edge while the context is active.

    Example:
        >>> with filters_at_each_edge():
        ...     are_at_each_edge()
        True
    """
    return _switched_on(_at_each_edge)


def tables_stay() -> AbstractContextManager[None]:
    """Make models keep tables of filters between calls in the context, as long as the weights do not change."""
    return _switched_on(_tables_stay)


def grids_are_followed() -> AbstractContextManager[None]:
    """Let models use their grids in a CUDA graph, which cannot check them; the caller checks them between replays."""
    return _switched_on(_followed)


def one_form_of_any_shape() -> AbstractContextManager[None]:
    """Make models choose the same form for batches of any shape in the context, so that results have the same bits."""
    return _switched_on(_of_any_shape)


@contextmanager
def _switched_on(switch: ContextVar[bool]) -> Iterator[None]:
    token = switch.set(True)
    try:
        yield
    finally:
        switch.reset(token)


def are_at_each_edge() -> bool:
    """Check whether filter networks run at each edge in this context."""
    return _at_each_edge.get()


def do_tables_stay() -> bool:
    """Check whether models keep tables of filters between calls in this context."""
    return _tables_stay.get()


def are_grids_followed() -> bool:
    """Check whether the caller of a CUDA graph checks the grids of models between replays."""
    return _followed.get()


def is_one_form_of_any_shape() -> bool:
    """Check whether models choose the same form for batches of any shape in this context."""
    return _of_any_shape.get()


def parts_with_filters(module: nn.Module) -> list[Any]:
    """Return the submodules with filters on a grid; their `refine_filters` and `follow_filters` check the grid.

    Example:
        >>> parts_with_filters(nn.Linear(2, 3))
        []
    """
    return [part for part in module.modules() if hasattr(part, "follow_filters")]

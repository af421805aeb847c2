"""The classes of PyG's batches, and functions that run once."""

import functools
from collections.abc import Callable
from typing import Any

from torch_geometric.data import Batch, Data, HeteroData

DataBatch = type(Batch(_base_cls=Data))
HeteroDataBatch = type(Batch(_base_cls=HeteroData))


def call_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of which only the first call does anything; later ones return None.

    Example:
        >>> begin = call_once(lambda: "begun")
        >>> begin(), begin()
        ('begun', None)
    """

    left = [function]

    @functools.wraps(function)
    def once(*args: Any, **kwargs: Any) -> Any:
        return left.pop()(*args, **kwargs) if left else None

    return once

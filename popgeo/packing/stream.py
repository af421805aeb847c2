"""Next fit: graphs in the order given, a new pack when the next graph does not fit."""

from bisect import bisect_right

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from popgeo.native import library
from popgeo.packing.packs import Budget, Ids, Packs
from popgeo.packing.sizes import fitting


def stream(sizes: ArrayLike, budget: Budget, *, generator: torch.Generator | None = None, skip: bool = False) -> Packs:
    """Pack graphs in the given order. No other strategy keeps the order, so use this for evaluation.

    Args:
        sizes: Sizes of each graph. [num_graphs, num_dims] or [num_graphs]
        budget: The capacity of a pack.
        generator: Not used; every strategy has this argument.
        skip: Whether to leave out graphs that no pack can hold, and list them in `skipped`.

    Returns:
        Packs with the ids 0, 1, 2, ... in order.

    Raises:
        ValueError: a graph can never fit and `skip` is False.

    Example:
        >>> [pack.tolist() for pack in stream([3, 4, 5, 1], Budget(sizes=(7,), num_graphs=2))]
        [[0, 1], [2, 3]]
    """
    table, ids, skipped = fitting(sizes, budget, skip=skip)
    ptr = _compiled(np.ascontiguousarray(table), budget)
    if ptr is None:
        ptr = _interpreted(table, budget)
    return Packs(np.arange(len(table)) if ids is None else ids, ptr, skipped)


def _compiled(table: NDArray[np.int64], budget: Budget) -> Ids | None:
    """Return the start of each pack, and the end; None without the library."""
    next_fit = library.function("popgeo_next_fit", "PqiPqPP", "q")
    if next_fit is None or max(budget.num_graphs, *budget.sizes) >= 2**62:
        return None
    limits, ptr = np.array(budget.sizes, np.int64), np.empty(len(table) + 1, np.int64)
    arrays = (limits, np.empty_like(limits), ptr)
    at, used, out = (array.ctypes.data for array in arrays)
    num_packs = next_fit(table.ctypes.data, len(table), len(limits), at, budget.num_graphs, used, out)
    return ptr[: num_packs + 1].copy()


def _interpreted(table: NDArray[np.int64], budget: Budget) -> Ids:
    """Return the start of each pack, and the end, without the library."""
    num_graphs = len(table)
    # used[d][i] is the total size of the first i graphs, so a bisection finds the end of a pack that starts at graph i.
    used = [np.concatenate([[0], np.cumsum(column)]).tolist() for column in table.T]
    ptr = [0]
    while ptr[-1] < num_graphs:
        start = ptr[-1]
        end = min(start + budget.num_graphs, num_graphs)
        for total, limit in zip(used, budget.sizes, strict=True):
            end = bisect_right(total, total[start] + limit, start, end + 1) - 1
        ptr.append(end)
    return np.array(ptr, np.int64)

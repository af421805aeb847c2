"""Next fit: graphs in the order given, a new pack when the next graph does not fit."""

from bisect import bisect_right

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from popgeo.native import library
from popgeo.packing.packs import Budget, Ids, Packs
from popgeo.packing.sizes import fitting


def stream(sizes: ArrayLike, budget: Budget, *, generator: torch.Generator | None = None, skip: bool = False) -> Packs:
    """Pack graphs in the order given; the only strategy that keeps it, so the one for evaluation.

    Args:
        sizes: Sizes of each graph. [num_graphs, num_dims] or [num_graphs]
        budget: What one pack may hold.
        generator: Not used, as the order is given; every strategy takes one.
        skip: Leave out, and count in `skipped`, the graphs that no pack can hold.

    Returns:
        Packs whose ids, read one after another, are 0, 1, 2, ...

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
    """Where each pack starts, and the end; None if there is no library."""
    next_fit = library.function("popgeo_next_fit", "PqiPqPP", "q")
    if next_fit is None or max(budget.num_graphs, *budget.sizes) >= 2**62:
        return None
    limits, ptr = np.array(budget.sizes, np.int64), np.empty(len(table) + 1, np.int64)
    arrays = (limits, np.empty_like(limits), ptr)
    at, used, out = (array.ctypes.data for array in arrays)
    num_packs = next_fit(table.ctypes.data, len(table), len(limits), at, budget.num_graphs, used, out)
    return ptr[: num_packs + 1].copy()


def _interpreted(table: NDArray[np.int64], budget: Budget) -> Ids:
    """The same without the library."""
    num_graphs = len(table)
    # used[d][i] is what the first i graphs use together, so a pack that starts at graph i ends where a bisection says.
    used = [np.concatenate([[0], np.cumsum(column)]).tolist() for column in table.T]
    ptr = [0]
    while ptr[-1] < num_graphs:
        start = ptr[-1]
        end = min(start + budget.num_graphs, num_graphs)
        for total, limit in zip(used, budget.sizes, strict=True):
            end = bisect_right(total, total[start] + limit, start, end + 1) - 1
        ptr.append(end)
    return np.array(ptr, np.int64)

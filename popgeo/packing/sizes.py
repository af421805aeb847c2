"""The input of every packing function: sizes as an integer table, and the graphs that no pack can hold."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from popgeo.packing.packs import Budget, Ids

_WORTH = 0.95  # a second shape must save a twentieth of the slots, since compiling takes time


def as_table(sizes: ArrayLike, *, narrow: bool = False) -> NDArray[np.int64]:
    """Return the sizes of graphs as a table with one row per graph and one column per dimension.

    Args:
        sizes: Whole numbers. [num_graphs, num_dims], or [num_graphs] if there is one dimension
        narrow: Whether to keep signed integers of fewer bits, which take less memory; sums of them may overflow.

    Returns:
        The same numbers. int64, or the given dtype if `narrow` [num_graphs, num_dims]

    Raises:
        ValueError: a size is negative or not whole, or the array has a different shape.

    Example:
        >>> as_table([3, 4]).shape
        (2, 1)
    """
    table = np.asarray(sizes)
    if table.size and not np.issubdtype(table.dtype, np.integer):
        raise ValueError(f"sizes has dtype {table.dtype}; sizes are whole numbers, so pass an integer array.")
    if table.ndim not in (1, 2):
        raise ValueError(f"sizes has {table.ndim} dimensions; pass [num_graphs] or [num_graphs, num_dims].")
    if not (narrow and np.issubdtype(table.dtype, np.signedinteger)):
        table = table.astype(np.int64, copy=False)
    table = table[:, None] if table.ndim == 1 else table
    if table.size and table.min() < 0:
        raise ValueError(f"Graph {int(table.min(axis=1).argmin())} has size {table.min()}; no size may be negative.")
    if table.size and int(table.max()) > (1 << 62) // len(table):
        raise ValueError(f"A size is {table.max()}, so that {len(table)} graphs together exceed 64-bit numbers.")
    return table


def fitting(
    sizes: ArrayLike, budget: Budget, *, skip: bool = False, narrow: bool = False
) -> tuple[NDArray[np.int64], Ids | None, Ids]:
    """Separate the graphs that fit in a pack from the graphs that are too large for any pack.

    Args:
        sizes: Sizes of each graph. [num_graphs, num_dims] or [num_graphs]
        budget: The capacity of a pack.
        skip: Whether to leave out graphs that are too large, instead of raising an error.
        narrow: See `as_table`.

    Returns:
        The sizes that fit, [num_fitting, num_dims]; their ids, None if all fit; the ids left out.

    Raises:
        ValueError: a graph cannot fit and `skip` is False, or `budget` and `sizes` have different dimensions.

    Example:
        >>> table, ids, skipped = fitting([3, 9, 4], Budget(sizes=(5,), num_graphs=2), skip=True)
        >>> table[:, 0].tolist(), ids.tolist(), skipped.tolist()
        ([3, 4], [0, 2], [1])
    """
    table = as_table(sizes, narrow=narrow)
    if table.shape[1] != len(budget.sizes):
        raise ValueError(f"sizes has {table.shape[1]} dimensions, the budget {len(budget.sizes)}; give both the same.")
    nothing = np.empty(0, np.int64)
    # Column by column: numpy reduces a narrow table along its long axis 50 times slower.
    largest = [int(column.max(initial=0)) for column in table.T]
    if all(size <= limit for size, limit in zip(largest, budget.sizes, strict=True)):
        return table, None, nothing
    too_big = (table > np.array(budget.sizes)).any(axis=1)
    skipped = np.flatnonzero(too_big)
    if not skip:
        first = int(skipped[0])
        raise ValueError(
            f"Graph {first} has sizes {tuple(table[first].tolist())}, a pack holds {budget.sizes}: it can never fit "
            f"(graphs like it: {len(skipped)}). "
            f"Raise the budget to {tuple(map(max, largest, budget.sizes))} or pass skip=True."
        )
    return table[~too_big], np.flatnonzero(~too_big), skipped


def names(num_dims: int) -> tuple[str, ...]:
    """Return names for the dimensions of sizes: nodes and edges, or numbered sizes if there are more than two.

    Example:
        >>> names(1), names(3)
        (('nodes',), ('size_0', 'size_1', 'size_2'))
    """
    return ("nodes", "edges")[:num_dims] if num_dims <= 2 else tuple(f"size_{d}" for d in range(num_dims))


def grown(sizes: Sequence[int], needed: Sequence[int] | np.ndarray, times: int = 1) -> list[int]:
    """Return sizes that are large enough; a size that must grow becomes 1.5 times the need, because more may come.

    Args:
        sizes: The sizes so far, one per kind of slots.
        needed: The slots that are needed, one per kind.
        times: Further factor: a size that must grow becomes `1.5 * times` times the need.

    Example:
        >>> grown([10, 40], needed=[20, 30])
        [30, 40]
    """
    return [int(n) * 3 * times // 2 if n > size else size for size, n in zip(sizes, needed, strict=True)]


def common_and_largest(sizes: ArrayLike) -> list[tuple[int, ...]]:
    """Return a shape for most graphs and a shape for the rest, such that graphs that run one by one use few slots.

    Args:
        sizes: Sizes of each graph. [num_graphs, num_dims]

    Returns:
        The two shapes, the smaller one first; or only the larger one if the smaller one saves less than a twentieth.

    Example:
        >>> common_and_largest([[8, 80]] * 60 + [[9, 70], [900, 9000]])
        [(9, 80), (900, 9000)]
    """
    table = as_table(sizes)
    costs = 1 / np.maximum(table.mean(axis=0), 1e-9)  # a slot of each dimension; a mean graph costs 1 in each
    order = np.argsort(table @ costs, kind="stable")
    largest = np.maximum.accumulate(table[order])  # [num_graphs, num_dims] of the graphs so far
    each, count = largest @ costs, np.arange(1, len(table) + 1)
    total = count * each + count[::-1] * each[-1] - each[-1]
    best = int(total.argmin())
    chosen = [best, -1] if total[best] < _WORTH * total[-1] else [-1]
    return [tuple(largest[i].tolist()) for i in chosen]

"""Lower bounds of the number of packs, and the fill of the packs of a plan."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from popgeo.packing.packs import Budget, Packs
from popgeo.packing.sizes import as_table, fitting, names


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The average fill of the packs of a plan.

    Args:
        sizes: The used share of the budget, for each dimension.
        graphs: The used share of the number of graphs.
        binds: The fullest part of the budget: the name of a dimension, or "graphs".
        num_packs: The number of packs of the plan.
        lower_bound: A lower bound of the number of packs of any plan.
    """

    sizes: tuple[float, ...]
    graphs: float
    binds: str
    num_packs: int
    lower_bound: int

    def __repr__(self) -> str:
        labels = names(len(self.sizes))
        fills = ", ".join(f"{fill:.2%} of {name}" for fill, name in zip(self.sizes, labels, strict=True))
        return (
            f"{type(self).__name__}({self.num_packs:,} packs, {self.lower_bound:,} at least; {fills}, "
            f"{self.graphs:.2%} of graphs; {self.binds} run out first)"
        )


def efficiency(packs: Packs, sizes: ArrayLike, budget: Budget) -> Efficiency:
    """Return the fill of packs and the part of the budget that limits them.

    Args:
        packs: A plan.
        sizes: Sizes of each graph, as for packing. [num_graphs, num_dims] or [num_graphs]
        budget: The capacity of a pack.

    Raises:
        ValueError: `sizes` and `budget` have different numbers of dimensions.

    Example:
        >>> budget = Budget(sizes=(7, 14), num_graphs=2)
        >>> found = efficiency(Packs.from_lists([[0, 1], [2]]), [[4, 6], [3, 6], [7, 2]], budget)
        >>> found.sizes, found.graphs, found.binds
        ((1.0, 0.5), 0.75, 'nodes')
    """
    packed = as_table(sizes)[packs.indices]
    slots = np.maximum(np.array(budget.sizes) * len(packs), 1)
    fills = tuple((packed.sum(axis=0) / slots).tolist()) if len(packs) else (1.0,) * len(budget.sizes)
    graphs = packs.num_graphs / (len(packs) * budget.num_graphs) if len(packs) else 1.0
    binds = (*names(len(fills)), "graphs")[int(np.argmax([*fills, graphs]))]
    bound = lower_bound(sizes, budget)
    return Efficiency(sizes=fills, graphs=graphs, binds=binds, num_packs=len(packs), lower_bound=bound)


def lower_bound(sizes: ArrayLike, budget: Budget) -> int:
    """Return a lower bound of the number of packs; graphs that can never fit do not count.

    The bound is the largest of three: the number of graphs over graphs per pack; per dimension, the volume over the
    largest sum of sizes that a pack can reach (multiples of 3 never fill 100); and per dimension the bound L2 of
    Martello and Toth 1990 (doi 10.1016/0166-218X(90)90094-S). L2 uses that two graphs over half the budget never share
    a pack.

    Example:
        >>> lower_bound([3, 3, 3, 6], Budget(sizes=(5,), num_graphs=9))
        3
        >>> lower_bound([2, 2, 2, 2], Budget(sizes=(9,), num_graphs=1))
        4
    """
    table, _, _ = fitting(sizes, budget, skip=True)
    bounds = [-(-len(table) // budget.num_graphs)]
    for column, limit in zip(table.T, budget.sizes, strict=True):
        values, counts = np.unique(column, return_counts=True)
        reach = largest_sum(values.tolist(), limit)
        bounds.append(_volume_and_halves(values, counts, reach) if reach else 0)
    return max(bounds)


def largest_sum(sizes: Sequence[int], limit: int) -> int:
    """Return the largest sum of sizes up to `limit`, with each size used any number of times.

    Example:
        >>> largest_sum([9, 12], 153), largest_sum([9, 12], 17), largest_sum([20], 17)
        (153, 12, 0)
    """
    if limit > 1 << 20:  # shifting this number of bits is slow; the common divisor gives a weaker bound
        divisor = math.gcd(*sizes)
        return limit // divisor * divisor if divisor else 0
    reached = 1  # bit n: some sizes add up to n
    everything = (1 << (limit + 1)) - 1
    for size in filter(None, sizes):
        for doublings in range((limit // size).bit_length()):  # one more, two more, four more ... of this size
            reached = (reached | reached << (size << doublings)) & everything
    return reached.bit_length() - 1


def _volume_and_halves(values: NDArray[np.int64], counts: NDArray[np.int64], limit: int) -> int:
    """Return L2 for a histogram of sizes in rising order; its threshold 0 is the volume bound."""
    number = np.concatenate([[0], np.cumsum(counts)])
    volume = np.concatenate([[0], np.cumsum(values * counts)])
    half = np.searchsorted(values, limit // 2, side="right")  # from here on, two graphs never share a pack
    thresholds = np.concatenate([[0], values[:half]])
    alone = np.maximum(np.searchsorted(values, limit - thresholds, side="right"), half)  # nothing joins
    small = np.searchsorted(values, thresholds, side="left")  # graphs below are ignored
    room = (number[alone] - number[half]) * limit - (volume[alone] - volume[half])
    more = np.maximum(0, -(-(volume[half] - volume[small] - room) // limit))
    return int((number[-1] - number[half] + more).max())

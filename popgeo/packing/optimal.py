"""As few packs as can be, with a proof: for small batches, where the choice of sizes decides how full they are."""

import functools
from dataclasses import replace

import torch
from numpy.typing import ArrayLike

from popgeo.packing.assign import assign
from popgeo.packing.column_generation import solve_fractional
from popgeo.packing.decreasing import best_fit_decreasing
from popgeo.packing.packs import Budget, Packs
from popgeo.packing.rounding import round_to_packs
from popgeo.packing.size_plan import Histogram, SizePlan, histogram


def optimal(sizes: ArrayLike, budget: Budget, *, generator: torch.Generator | None = None, skip: bool = False) -> Packs:
    """Pack graphs into as few packs as can be: column generation on the sizes, then random graphs of those sizes.

    The plan of sizes is made once for a histogram and remembered; an epoch costs only the random assignment.

    Args:
        sizes: Sizes of each graph. [num_graphs, num_dims] or [num_graphs]
        budget: What one pack may hold. The plan is one for the dimension that needs the most packs by volume; in the
            others, packs over budget swap graphs of the same size, and what no swap repairs goes to packs of its own.
        generator: Source of randomness for which graphs of a size go where; None takes them in order.
        skip: Leave out, and count in `skipped`, the graphs that no pack can hold.

    Returns:
        Packs in random order (in the plan's order where `generator` is None).

    Raises:
        ValueError: a graph can never fit and `skip` is False.

    Example:
        >>> budget = Budget(sizes=(10,), num_graphs=3)
        >>> sorted(sorted(pack.tolist()) for pack in optimal([6, 4, 5, 5, 3, 7], budget))
        [[0, 1], [2, 3], [4, 5]]
    """
    counted = histogram(sizes, budget, skip=skip)
    plan = optimal_plan(counted)
    if counted.unit > 1:  # then it is the best one for sizes rounded up, and largest first may do better without
        exact = best_fit_decreasing(histogram(sizes, budget, skip=skip, exact=True))
        plan = min(plan, exact, key=lambda p: p.num_packs)
    return assign(plan, sizes, budget, generator=generator, skip=skip)


@functools.lru_cache(maxsize=64)
def optimal_plan(sizes: Histogram) -> SizePlan:
    """The sizes that share a pack so that packs are as few as can be, and how far from the best that may be.

    Args:
        sizes: How many graphs there are of each size.

    Returns:
        A plan whose `bound` is proven: `gap` is 0 if no plan can be better.

    Example:
        >>> plan = optimal_plan(Histogram(sizes=(3, 4, 5), counts=(20, 10, 10), capacity=12, num_graphs=9, bound=13))
        >>> plan.num_packs, plan.gap
        (13, 0)
    """
    greedy = best_fit_decreasing(sizes)
    if greedy.gap <= 0:
        return greedy
    plan = round_to_packs(solve_fractional(sizes), sizes)
    return replace(greedy, bound=plan.bound) if greedy.num_packs < plan.num_packs else plan

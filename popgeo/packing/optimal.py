"""The smallest number of packs, with a proof: for small batches, whose fill depends on the choice of sizes."""

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
    """Pack graphs into the fewest packs: column generation on the sizes, then random graphs of these sizes.

    The plan of sizes is cached for each histogram, so an epoch costs only the random assignment.

    Args:
        sizes: Sizes of each graph. [num_graphs, num_dims] or [num_graphs]
        budget: The capacity of a pack. The plan covers the dimension that needs the most packs by volume. In the other
            dimensions, packs over budget swap graphs of the same size, or move graphs to new packs.
        generator: Source of randomness for the assignment of graphs of equal size. Default: in order.
        skip: Whether to leave out graphs that no pack can hold, and list them in `skipped`.

    Returns:
        Packs in random order (in the order of the plan if `generator` is None).

    Raises:
        ValueError: a graph can never fit and `skip` is False.

    Example:
        >>> budget = Budget(sizes=(10,), num_graphs=3)
        >>> sorted(sorted(pack.tolist()) for pack in optimal([6, 4, 5, 5, 3, 7], budget))
        [[0, 1], [2, 3], [4, 5]]
    """
    counted = histogram(sizes, budget, skip=skip)
    plan = optimal_plan(counted)
    if counted.unit > 1:  # the plan is optimal for sizes rounded up; best-fit decreasing uses exact sizes
        exact = best_fit_decreasing(histogram(sizes, budget, skip=skip, exact=True))
        plan = min(plan, exact, key=lambda p: p.num_packs)
    return assign(plan, sizes, budget, generator=generator, skip=skip)


@functools.lru_cache(maxsize=64)
def optimal_plan(sizes: Histogram) -> SizePlan:
    """Return the plan with the fewest packs, or with a proven distance from the fewest packs.

    Args:
        sizes: The number of graphs of each size.

    Returns:
        A plan with a proven `bound`: a `gap` of 0 means that no plan is better.

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

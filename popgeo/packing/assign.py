"""Assignment of graphs to a plan of sizes; graphs of equal size are drawn again in each epoch."""

import numpy as np
import torch
from numpy.typing import ArrayLike

from popgeo.packing.packs import Budget, Ids, Packs
from popgeo.packing.size_plan import SizePlan, to_units
from popgeo.packing.sizes import fitting
from popgeo.packing.swaps import PlacesBySize, within_budget


def assign(
    plan: SizePlan, sizes: ArrayLike, budget: Budget, *, generator: torch.Generator | None = None, skip: bool = False
) -> Packs:
    """Fill the packs of a plan with graphs, at random within each size.

    A plan covers one dimension. If a pack exceeds a different dimension (edges, for example), it swaps graphs of the
    same size with packs that have room, so the plan still holds. If swaps do not suffice, graphs move to new packs
    after the packs of the plan.

    Args:
        plan: A plan from `best_fit_decreasing` or `optimal_plan` for the same sizes.
        sizes: Sizes of each graph. [num_graphs, num_dims] or [num_graphs]
        budget: The capacity of a pack.
        generator: Source of randomness. Default: graphs of a size in order, and packs in the order of the plan.
        skip: Whether to leave out graphs that no pack can hold, and list them in `skipped`.

    Raises:
        ValueError: a graph can never fit and `skip` is False, or the plan is for other sizes.

    Example:
        >>> plan = SizePlan(composition=((3, 2), (3,)), counts=(1, 1), bound=2)
        >>> [pack.tolist() for pack in assign(plan, [3, 2, 3], Budget(sizes=(5,), num_graphs=2))]
        [[0, 1], [2]]
    """
    table, ids, skipped = fitting(sizes, budget, skip=skip)
    # Ranks replace sizes: they are few, and 16-bit numbers, if they suffice, sort by radix.
    kinds = Packs.from_lists(plan.composition)
    ranked = np.unique(kinds.indices)
    ranks = _ranks(to_units(table[:, plan.dim], plan.unit, budget.sizes[plan.dim]), ranked)
    numbers = np.repeat(np.arange(len(kinds)), np.array(plan.counts, np.int64))
    laid_out = Packs(_ranks(kinds.indices, ranked), kinds.ptr).take(numbers.take(_order(len(numbers), generator)))
    slot_ranks, ptr = laid_out.indices, laid_out.ptr
    held = np.bincount(slot_ranks, minlength=len(ranked) + 1)
    if not np.array_equal(held, np.bincount(ranks, minlength=len(ranked) + 1)):
        raise ValueError(
            f"The plan is for {len(slot_ranks)} graphs of other sizes than these {len(ranks)}. Make a new plan."
        )
    order = _order(len(table), generator)
    slots = np.argsort(slot_ranks, kind="stable")
    indices = np.empty(len(table), np.int64)
    indices[slots] = order.take(np.argsort(ranks.take(order), kind="stable"))
    packs = Packs(indices, ptr)
    others = [dim for dim in range(table.shape[1]) if dim != plan.dim]
    if others:
        places = PlacesBySize(slots, np.concatenate([[0], np.cumsum(held)]), slot_ranks)
        packs = within_budget(packs, places, table, budget, others, generator)
    return Packs(packs.indices if ids is None else ids[packs.indices], packs.ptr, skipped)


def _order(count: int, generator: torch.Generator | None) -> Ids:
    return np.arange(count) if generator is None else torch.randperm(count, generator=generator).numpy()


def _ranks(sizes: Ids, ranked: Ids) -> np.ndarray:
    """Return the position of each size in a list of sizes, or the length of the list for a size that it lacks."""
    largest = max(sizes.max(initial=0), ranked.max(initial=0))
    if largest < 1 << 20:
        table = np.full(largest + 1, len(ranked), _dtype(ranked))
        table[ranked] = np.arange(len(ranked))
        return table.take(sizes)
    ranks = np.searchsorted(ranked, sizes)
    ranks[np.append(ranked, -1)[ranks] != sizes] = len(ranked)
    return ranks.astype(_dtype(ranked))


def _dtype(ranked: Ids) -> type:
    return np.uint16 if len(ranked) < 1 << 16 else np.int64

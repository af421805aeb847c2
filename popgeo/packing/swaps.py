"""Swaps of graphs of the same size between packs, until every pack is within every budget."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from popgeo.packing.packs import Budget, Ids, Packs, totals_of_packs
from popgeo.packing.stream import stream

# Proposals per pack and round; a round is a few array operations over the packs that exceed a budget.
_PROPOSALS = 8
_ROUNDS = 200
_IDLE_ROUNDS = 12


class PlacesBySize(NamedTuple):
    """The places of all packs, ordered by their planned sizes.

    Args:
        places: Indices into `Packs.indices`. [num_graphs]
        ptr: The start of each size in `places`. [num_sizes + 1 and more]
        ranks: The planned size of each place, in the order of the packs. [num_graphs]
    """

    places: Ids
    ptr: Ids
    ranks: np.ndarray


def within_budget(
    packs: Packs,
    by_size: PlacesBySize,
    table: Ids,
    budget: Budget,
    dims: Sequence[int],
    generator: torch.Generator | None,
) -> Packs:
    """Swap graphs of the same size until packs are within budget; graphs that still do not fit move to new packs.

    Args:
        packs: Packs that are within budget in the planned dimension.
        by_size: The places of graphs of each size.
        table: Sizes of each graph. [num_graphs, num_dims]
        budget: The capacity of a pack.
        dims: The dimensions that were not planned.
        generator: Source of randomness. Default: a fixed seed.
    """
    limits = np.array(budget.sizes)[dims]
    used = totals_of_packs(table[:, dims], packs.indices, packs.ptr)
    if not (used > limits).any():
        return packs
    seed = 0 if generator is None else int(torch.randint(2**62, (), generator=generator))
    indices = packs.indices.copy()
    _swap(indices, packs.ptr, by_size, table[:, dims], used, limits, np.random.default_rng(seed))
    return _move_out(Packs(indices, packs.ptr), table, np.asarray((used > limits).any(axis=1)), budget)


def _swap(
    indices: Ids, ptr: Ids, by_size: PlacesBySize, table: Ids, used: Ids, limits: Ids, rng: np.random.Generator
) -> None:
    """Swap graphs while this reduces the excess over the budget; `indices` and `used` change in place."""
    pack_of = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    claim = np.empty_like(ptr)
    over = np.arange(len(ptr) - 1)
    idle = 0
    for _ in range(_ROUNDS):
        over = over[(used[over] > limits).any(axis=1)]  # a swap never puts another pack over budget
        if not len(over) or idle == _IDLE_ROUNDS:
            return
        # Each pack over budget proposes to swap some of its graphs with graphs of the same size in other packs.
        giver = np.repeat(over, _PROPOSALS)
        give = ptr[giver] + rng.integers(ptr[giver + 1] - ptr[giver])
        rank = by_size.ranks[give].astype(np.int64)
        take = by_size.places[by_size.ptr[rank] + rng.integers(by_size.ptr[rank + 1] - by_size.ptr[rank])]
        taker = pack_of[take]
        change = table[indices[take]] - table[indices[give]]
        gain = _excess(used[giver], limits) - _excess(used[giver] + change, limits)
        gain[(used[taker] - change > limits).any(axis=1) | (taker == giver)] = 0
        best = gain.reshape(-1, _PROPOSALS).argmax(axis=1) + np.arange(len(over)) * _PROPOSALS
        best = best[gain[best] > 0]
        # A pack takes part in at most one swap per round; otherwise the sums above would be wrong.
        claim[taker[best]] = best
        claim[giver[best]] = best
        best = best[(claim[taker[best]] == best) & (claim[giver[best]] == best)]
        idle = 0 if len(best) else idle + 1
        indices[give[best]], indices[take[best]] = indices[take[best]], indices[give[best]]
        used[giver[best]] += change[best]
        used[taker[best]] -= change[best]


def _excess(used: Ids, limits: Ids) -> np.ndarray:
    """Return the excess of packs over the budget, relative to the budget and summed over dimensions, [...]."""
    return (np.maximum(used - limits, 0) / np.maximum(limits, 1)).sum(axis=-1)


def _move_out(packs: Packs, table: Ids, over: np.ndarray, budget: Budget) -> Packs:
    """Move graphs out of packs that are over budget, largest relief first, into new packs at the end."""
    limits = np.array(budget.sizes)
    keep = np.ones(len(packs.indices), bool)
    for pack in np.flatnonzero(over).tolist():
        start, stop = int(packs.ptr[pack]), int(packs.ptr[pack + 1])
        used = table[packs.indices[start:stop]].sum(axis=0)
        while (used > limits).any():
            places = start + np.flatnonzero(keep[start:stop])
            relief = _excess(used, limits) - _excess(used - table[packs.indices[places]], limits)
            best = places[relief.argmax()]
            keep[best] = False
            used -= table[packs.indices[best]]
    if keep.all():
        return packs
    moved = packs.indices[~keep]
    moved = moved[np.argsort(-table[moved].max(axis=1), kind="stable")]
    extra = stream(table[moved], budget)
    kept_ptr = np.concatenate([[0], np.cumsum(keep)])[packs.ptr]
    return Packs.concatenate([Packs(packs.indices[keep], kept_ptr), Packs(moved[extra.indices], extra.ptr)])

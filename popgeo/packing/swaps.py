"""Swaps of graphs of the same size between packs, until every pack is within every budget."""

from __future__ import annotations

import numpy as np
import torch

from popgeo.packing.packs import Budget, Ids, Packs
from popgeo.packing.stream import stream

# Proposals per pack and round; each round is a handful of array operations over the packs that exceed a budget.
_PROPOSALS = 8
_ROUNDS = 200
_IDLE_ROUNDS = 12


def within_budget(
    packs: Packs, slots: Ids, slot_sizes: np.ndarray, table: Ids, budget: Budget, generator: torch.Generator | None
) -> Packs:
    """Repair packs that exceed a budget by swapping graphs of the same size; the rest moves to packs of its own.

    Args:
        packs: Packs that are within budget in the dimension that they were planned in.
        slots: Places in `packs.indices`, ordered by the size planned there. [num_graphs]
        slot_sizes: The size planned at each place. [num_graphs]
        table: Sizes of each graph. [num_graphs, num_dims]
        budget: What one pack may hold.
        generator: Source of randomness; None draws from a fixed seed.
    """
    if not len(packs):
        return packs
    limits = np.array(budget.sizes)
    used = np.add.reduceat(table[packs.indices], packs.ptr[:-1], axis=0)
    if not (used > limits).any():
        return packs
    seed = 0 if generator is None else int(torch.randint(2**62, (), generator=generator))
    indices = packs.indices.copy()
    _swap(indices, packs.ptr, slots, slot_sizes, table, used, limits, np.random.default_rng(seed))
    return _move_out(Packs(indices, packs.ptr), table, used, budget)


def _swap(
    indices: Ids,
    ptr: Ids,
    slots: Ids,
    slot_sizes: np.ndarray,
    table: Ids,
    used: Ids,
    limits: Ids,
    rng: np.random.Generator,
) -> None:
    """Swaps in place (both `indices` and `used` are the caller's own) while swaps lessen what is over budget."""
    sorted_sizes = slot_sizes[slots]
    pack_of = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    claim = np.full(len(ptr) - 1, -1)
    idle = 0
    for _ in range(_ROUNDS):
        over = np.flatnonzero((used > limits).any(axis=1))
        if not len(over) or idle == _IDLE_ROUNDS:
            return
        # Each pack over budget proposes to give away some of its graphs, each for one of the same size elsewhere.
        giver = np.repeat(over, _PROPOSALS)
        give = ptr[giver] + rng.integers(ptr[giver + 1] - ptr[giver])
        first = np.searchsorted(sorted_sizes, slot_sizes[give], side="left")
        last = np.searchsorted(sorted_sizes, slot_sizes[give], side="right")
        take = slots[first + rng.integers(last - first)]
        taker = pack_of[take]
        change = table[indices[take]] - table[indices[give]]
        gain = (
            _excess(used[giver], limits)
            + _excess(used[taker], limits)
            - _excess(used[giver] + change, limits)
            - _excess(used[taker] - change, limits)
        )
        gain[taker == giver] = 0
        best = gain.reshape(-1, _PROPOSALS).argmax(axis=1) + np.arange(len(over)) * _PROPOSALS
        best = best[gain[best] > 0]
        # A pack takes part in one swap a round, or the sums above would not hold.
        claim[taker[best]] = best
        claim[giver[best]] = best
        best = best[(claim[taker[best]] == best) & (claim[giver[best]] == best)]
        idle = 0 if len(best) else idle + 1
        indices[give[best]], indices[take[best]] = indices[take[best]], indices[give[best]]
        used[giver[best]] += change[best]
        used[taker[best]] -= change[best]


def _excess(used: Ids, limits: Ids) -> np.ndarray:
    """How far packs are over budget, as a share of it so that dimensions compare. [...]"""
    return (np.maximum(used - limits, 0) / np.maximum(limits, 1)).sum(axis=-1)


def _move_out(packs: Packs, table: Ids, used: Ids, budget: Budget) -> Packs:
    """Takes graphs out of packs still over budget, most of the excess first, and packs them next-fit at the end."""
    limits = np.array(budget.sizes)
    keep = np.ones(len(packs.indices), bool)
    for pack in np.flatnonzero((used > limits).any(axis=1)).tolist():
        start, stop = int(packs.ptr[pack]), int(packs.ptr[pack + 1])
        room = used[pack].copy()
        while (room > limits).any():
            places = start + np.flatnonzero(keep[start:stop])
            relief = _excess(room, limits) - _excess(room - table[packs.indices[places]], limits)
            best = places[relief.argmax()]
            keep[best] = False
            room -= table[packs.indices[best]]
    if keep.all():
        return packs
    moved = packs.indices[~keep]
    moved = moved[np.argsort(-table[moved].max(axis=1), kind="stable")]
    extra = stream(table[moved], budget)
    kept_ptr = np.concatenate([[0], np.cumsum(keep)])[packs.ptr]
    return Packs.concatenate([Packs(packs.indices[keep], kept_ptr), Packs(moved[extra.indices], extra.ptr)])

"""Swaps keep the plan's sizes in place, never put a pack over its budget, and repair what can be repaired."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from popgeo.packing import Budget, Packs
from popgeo.packing.swaps import PlacesBySize, within_budget


def by_size(sizes_in_place: np.ndarray) -> PlacesBySize:
    """Where graphs of each size are, for places that were planned for these sizes."""
    values, ranks = np.unique(sizes_in_place, return_inverse=True)
    starts = np.searchsorted(np.sort(sizes_in_place), [*values, values[-1] + 1])
    return PlacesBySize(np.argsort(sizes_in_place, kind="stable"), starts, ranks)


def totals(table: np.ndarray, indices: np.ndarray, ptr: np.ndarray) -> np.ndarray:
    return np.array([table[indices[a:b]].sum(axis=0) for a, b in pairwise(ptr)])


def drawn(seed: int) -> tuple[Packs, np.ndarray, np.ndarray]:
    """Forty packs of six graphs of three sizes, with two further sizes each, and limits that some packs exceed."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, 240)
    table = np.stack([sizes, 3 * sizes + rng.integers(0, 8, 240), rng.integers(0, 9, 240)], axis=1)
    packs = Packs(rng.permutation(240), np.arange(0, 241, 6))
    return packs, table, np.percentile(totals(table[:, 1:], packs.indices, packs.ptr), 75, axis=0).astype(int)


@pytest.mark.parametrize("seed", range(8))
def test_repaired_packs_are_within_every_budget_and_hardly_more_in_number(seed):
    packs, table, limits = drawn(seed)
    budget = Budget(sizes=(18, *limits.tolist()), num_graphs=6)
    assert (totals(table, packs.indices, packs.ptr) > np.array(budget.sizes)).any(axis=1).sum() >= 10
    found = within_budget(packs, by_size(table[packs.indices, 0]), table, budget, [1, 2], None)
    assert sorted(found.indices.tolist()) == list(range(240))
    assert (totals(table, found.indices, found.ptr) <= np.array(budget.sizes)).all()
    assert len(found) <= len(packs) + 1


def test_a_graph_that_no_swap_can_place_has_a_pack_of_its_own():
    # Only the graph of 9 could go, only to the second pack, whose 4 and 3 leave no room for it.
    table = np.array([[1, 9], [1, 3], [1, 4], [1, 3]])
    packs = Packs(np.arange(4), np.array([0, 2, 4]))
    found = within_budget(packs, by_size(table[:, 0]), table, Budget(sizes=(2, 10), num_graphs=2), [1], None)
    assert [pack.tolist() for pack in found] == [[1], [2, 3], [0]]


def test_a_pack_over_its_budget_by_one_is_noticed_wherever_it_is():
    table = np.array([[1, 6], [1, 5], [1, 5], [1, 4], [1, 5], [1, 4]])
    for order in ([0, 1, 2, 3, 4, 5], [2, 3, 0, 1, 4, 5], [2, 3, 4, 5, 0, 1]):
        packs = Packs(np.array(order), np.array([0, 2, 4, 6]))
        found = within_budget(packs, by_size(table[order, 0]), table, Budget(sizes=(2, 10), num_graphs=2), [1], None)
        assert len(found) == 3
        assert totals(table[:, 1:], found.indices, found.ptr).max() == 10


def test_swaps_are_drawn_from_a_seed_of_62_bits_or_from_0(monkeypatch):
    seeds = []
    monkeypatch.setitem(within_budget.__globals__, "_swap", lambda *given: seeds.append(given[-1].bit_generator))
    packs, table, limits = drawn(0)
    for generator in (None, *(torch.Generator().manual_seed(seed) for seed in range(8))):
        budget = Budget(sizes=(18, *limits.tolist()), num_graphs=6)
        within_budget(packs, by_size(table[packs.indices, 0]), table, budget, [1, 2], generator)
    drawn_seeds = [seed.seed_seq.entropy for seed in seeds]
    assert drawn_seeds[0] == 0
    assert max(drawn_seeds) > 2**60
    assert max(drawn_seeds) < 2**62


def test_packs_within_every_budget_come_back_as_they_are():
    packs, table, _ = drawn(0)
    places = by_size(table[packs.indices, 0])
    most = totals(table, packs.indices, packs.ptr).max(axis=0)
    fits = Budget(sizes=tuple(most.tolist()), num_graphs=6)
    assert within_budget(packs, places, table, fits, [1, 2], None) is packs
    exceeded = Budget(sizes=(int(most[0]), int(most[1]) - 1, int(most[2])), num_graphs=6)
    repaired = within_budget(packs, places, table, exceeded, [1, 2], None)
    assert (totals(table, repaired.indices, repaired.ptr) <= np.array(exceeded.sizes)).all()
    assert sorted(repaired.indices.tolist()) == list(range(240))


def test_the_same_seed_makes_the_same_swaps():
    packs, table, limits = drawn(0)
    before = packs.indices.copy()
    budget = Budget(sizes=(18, *limits.tolist()), num_graphs=6)

    def swapped(seed: int | None) -> list[int]:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        places = by_size(table[packs.indices, 0])
        return within_budget(packs, places, table, budget, [1, 2], generator).indices.tolist()

    assert swapped(1) == swapped(1)
    assert swapped(None) == swapped(None)
    assert swapped(1) != swapped(2)
    assert swapped(1) != swapped(None)
    assert np.array_equal(packs.indices, before)

"""The linear program of packing against the one that lists every kind of pack."""

import math
import random
from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from popgeo.packing import Histogram
from popgeo.packing.column_generation import Knapsack, solve_fractional


def every_kind(sizes: Histogram) -> np.ndarray:
    """Return all kinds of pack, with the empty pack, [num_kinds, num_sizes]."""
    return _every_kind(sizes.sizes, sizes.capacity, sizes.num_graphs)


@cache
def _every_kind(sizes: tuple[int, ...], capacity: int, num_graphs: int) -> np.ndarray:
    numbers = [range(min(num_graphs, capacity // size if size else num_graphs) + 1) for size in sizes]
    kinds = [kind for kind in product(*numbers) if np.dot(kind, sizes) <= capacity and sum(kind) <= num_graphs]
    return np.array(kinds)


def drawn(seed: int) -> Histogram:
    draw = random.Random(seed)
    sizes = tuple(sorted(draw.sample(range(draw.choice((0, 1, 3)), 12), draw.randint(1, 4))))
    counts = tuple(draw.randint(1, 12) for _ in sizes)
    capacity = draw.randint(max(*sizes, 1), 24)
    return Histogram(sizes=sizes, counts=counts, capacity=capacity, num_graphs=draw.randint(1, 6), bound=0)


@pytest.mark.parametrize("part", range(3))
def test_the_fractions_are_as_few_as_with_every_kind_of_pack(part):
    for seed in range(8 * part, 8 * part + 8):
        sizes = drawn(seed)
        kinds = every_kind(sizes)
        fewest = linprog(np.ones(len(kinds)), A_ub=-kinds.T, b_ub=-np.array(sizes.counts)).fun
        found = solve_fractional(sizes)
        assert found.bound == math.ceil(fewest - 1e-6)
        assert fewest - 1e-6 <= found.amounts.sum() <= found.bound + 2e-4
        assert (found.kinds @ found.amounts >= np.array(sizes.counts) - 1e-6).all()
        assert (found.amounts >= 0).all()
        assert {tuple(kind) for kind in found.kinds.T.tolist()} <= {tuple(kind) for kind in kinds.tolist()}


def test_a_bound_that_is_known_is_kept():
    sizes = Histogram(sizes=(2,), counts=(5,), capacity=5, num_graphs=9, bound=4)
    assert solve_fractional(sizes).bound == 4


def test_a_knapsack_is_worth_as_much_as_the_best_kind_of_pack():
    for seed in range(40):
        sizes = drawn(seed)
        prices = np.random.default_rng(seed).integers(0, 2**29, len(sizes.sizes))
        kinds = every_kind(sizes)
        best, columns = Knapsack(sizes).solve(prices)
        assert best == (kinds @ prices).max()
        expected = [(kinds @ prices)[kinds[:, i] > 0].max() for i in range(len(sizes.sizes))]
        assert [int(np.dot(kind, prices)) for kind in columns] == [worth for worth in expected if worth > 2**30 + 8]
        assert set(columns) <= {tuple(kind) for kind in kinds.tolist()}


def test_room_is_filled_by_the_fewest_graphs_that_fill_it_most():
    for seed in range(20):
        sizes = drawn(seed)
        knapsack = Knapsack(sizes)
        for room, taken in product(range(sizes.capacity + 1), range(sizes.num_graphs + 1)):
            kinds = _every_kind(sizes.sizes, room, sizes.num_graphs - taken) if min(sizes.sizes) <= room else None
            found = knapsack.fill(room, taken)
            if kinds is None:
                assert not found.any()
                continue
            used = int((kinds @ sizes.sizes).max())
            fewest = min(kinds[kinds @ sizes.sizes == used].sum(axis=1))
            assert (int(found @ sizes.sizes), found.sum()) == (used, fewest)


KINDS = np.array([[2, 0, 1], [0, 2, 1]])  # of sizes 1 and 3, whose mean is 2 and whose variance 1
EVEN = Histogram(sizes=(1, 3), counts=(4, 4), capacity=6, num_graphs=2)

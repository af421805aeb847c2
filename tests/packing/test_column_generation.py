"""The linear program of packing against the one that lists every kind of pack."""

import math
import random
from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from popgeo.packing import Histogram
from popgeo.packing.column_generation import _PRICE, Knapsack, _evened_out, _first_kinds, solve_fractional


def every_kind(sizes: Histogram) -> np.ndarray:
    """All kinds of pack, the empty one too. [num_kinds, num_sizes]"""
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
        prices = np.random.default_rng(seed).integers(0, _PRICE // 2, len(sizes.sizes))
        kinds = every_kind(sizes)
        best, columns = Knapsack(sizes).solve(prices)
        assert best == (kinds @ prices).max()
        expected = [(kinds @ prices)[kinds[:, i] > 0].max() for i in range(len(sizes.sizes))]
        assert [int(np.dot(kind, prices)) for kind in columns] == [worth for worth in expected if worth > _PRICE + 8]
        assert set(columns) <= {tuple(kind) for kind in kinds.tolist()}


@pytest.mark.parametrize(("more", "columns"), [(8, []), (9, [(1,)])])
def test_a_column_must_be_worth_more_than_rounding_of_prices_could_make_it(more, columns):
    sizes = Histogram(sizes=(3,), counts=(5,), capacity=5, num_graphs=9)
    assert Knapsack(sizes).solve(np.array([_PRICE + more])) == (_PRICE + more, columns)


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


def test_the_first_kinds_are_each_size_alone_and_full_packs_with_every_size():
    sizes = Histogram(sizes=(1, 2, 5, 7), counts=(60, 50, 40, 2), capacity=30, num_graphs=40)
    kinds = np.array(sorted(_first_kinds(sizes, Knapsack(sizes))))
    used = kinds @ sizes.sizes
    alone = (kinds > 0).sum(axis=1) == 1
    assert {tuple(kind) for kind in kinds[alone].tolist()} >= {(30, 0, 0, 0), (0, 15, 0, 0), (0, 0, 6, 0), (0, 0, 0, 2)}
    assert (used[~alone] == 30).all()
    assert (kinds.sum(axis=1) <= 40).all()
    assert (kinds[:, 3] > 0).sum() > 8  # although it is one graph of 76
    mixed = kinds[~alone] / kinds[~alone].sum(axis=1, keepdims=True)
    assert mixed[:, :3].mean(axis=0) == pytest.approx(np.array([60, 50, 40]) / 152, abs=0.1)


@pytest.mark.parametrize(
    ("sizes", "counts", "num_graphs", "alone"),
    [
        ((0,), (7,), 5, {(5,)}),
        ((0, 4), (3, 1), 5, {(3, 0), (0, 1)}),
        ((4,), (9,), 2, {(2,)}),
        ((4,), (9,), 9, {(3,)}),
        ((4,), (2,), 9, {(2,)}),
    ],
)
def test_a_size_alone_fills_a_pack_as_far_as_there_are_graphs(sizes, counts, num_graphs, alone):
    counted = Histogram(sizes=sizes, counts=counts, capacity=12, num_graphs=num_graphs)
    kinds = _first_kinds(counted, Knapsack(counted))
    assert alone <= kinds
    assert kinds == alone or any(sizes)
    assert kinds <= {tuple(kind) for kind in every_kind(counted).tolist()}


KINDS = np.array([[2, 0, 1], [0, 2, 1]])  # of sizes 1 and 3, whose mean is 2 and whose variance 1
EVEN = Histogram(sizes=(1, 3), counts=(4, 4), capacity=6, num_graphs=2)


def test_kinds_that_vary_more_than_chance_are_exchanged_for_those_that_vary_least():
    # Packs of two alike are 1 off the mean, so 2 each: 8 for 4 packs, where 4 is what random ones vary.
    assert _evened_out(EVEN, KINDS, np.array([2.0, 2.0, 0.0])) == pytest.approx([0, 0, 4], abs=1e-3)
    as_random = np.array([1.0, 1.0, 2.0])
    assert _evened_out(EVEN, KINDS, as_random) is as_random


def test_evening_out_needs_no_more_packs():
    # Four packs of 1 + 1 + 3 would not vary, but two of like sizes, which do, are fewer.
    sizes = Histogram(sizes=(1, 3), counts=(8, 4), capacity=12, num_graphs=8)
    kinds = np.array([[8, 0, 2], [0, 4, 1]])
    found = _evened_out(sizes, kinds, np.array([1.0, 1.0, 0.0]))
    assert 2 <= found.sum() + 1e-9 <= 2.0002
    assert (kinds @ found >= np.array([8, 4]) - 1e-6).all()


def test_a_rare_size_is_in_a_mixed_kind_even_of_few_graphs():
    # Nothing of 24 is filled better by a graph of 3, so it is in a kind with others only if it is the first.
    sizes = Histogram(sizes=(3, 4, 8), counts=(10, 6000, 5000), capacity=24, num_graphs=4)
    assert _first_kinds(sizes, Knapsack(sizes)) >= {(1, 1, 2), (0, 2, 2), (4, 0, 0)}

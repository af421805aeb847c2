"""Lower bounds and efficiency, by hand."""

import random

import numpy as np
import pytest

from popgeo.packing import Budget, Packs, efficiency, lower_bound, stream
from popgeo.packing.efficiency import largest_sum


@pytest.mark.parametrize(
    ("sizes", "budget", "packs"),
    [
        ([5, 5, 5, 5], Budget(sizes=(10,), num_graphs=9), 2),  # volume
        ([5, 5, 5, 5], Budget(sizes=(10,), num_graphs=1), 4),  # graphs
        ([6, 6, 6, 4], Budget(sizes=(10,), num_graphs=9), 3),  # three are over half
        ([7, 7, 4, 4], Budget(sizes=(10,), num_graphs=9), 3),  # the fours do not join the sevens
        ([3] * 10, Budget(sizes=(10,), num_graphs=9), 4),  # only 9 of 10 can be reached
        ([[1, 9], [1, 9], [1, 9]], Budget(sizes=(10, 9), num_graphs=9), 3),  # edges
        ([0, 0, 0], Budget(sizes=(10,), num_graphs=2), 2),
        ([0, 0, 0], Budget(sizes=(0,), num_graphs=3), 1),
        ([], Budget(sizes=(10,), num_graphs=2), 0),
        ([99, 5], Budget(sizes=(10,), num_graphs=2), 1),  # what can never fit does not count
    ],
)
def test_the_lower_bound_by_hand(sizes, budget, packs):
    assert lower_bound(np.array(sizes, int), budget) == packs


def test_efficiency_says_what_runs_out_first():
    sizes = np.array([[4, 5], [4, 9], [2, 10], [6, 8]])
    budget = Budget(sizes=(10, 20), num_graphs=4)
    found = efficiency(Packs.from_lists([[0, 3], [1, 2]]), sizes, budget)
    assert found.sizes == (0.8, 0.8)
    assert efficiency(stream(sizes, budget), sizes, Budget(sizes=(10, 19), num_graphs=4)).binds == "edges"
    assert efficiency(stream(sizes, budget), sizes, Budget(sizes=(10, 20), num_graphs=2)).binds == "graphs"
    assert found.lower_bound == 2
    assert "80.00% of nodes" in str(found)


def test_skipped_graphs_do_not_count_as_packed():
    budget = Budget(sizes=(10,), num_graphs=2)
    found = efficiency(stream([5, 11, 5], budget, skip=True), [5, 11, 5], budget)
    assert found.sizes == (1.0,)
    assert found.lower_bound == found.num_packs == 1


def reference_bound(sizes, limit):
    """L2 as Martello and Toth write it, threshold by threshold."""
    bounds = []
    for threshold in {0, *(size for size in sizes if size <= limit // 2)}:
        alone = [size for size in sizes if size > limit - threshold]
        over_half = [size for size in sizes if limit // 2 < size <= limit - threshold]
        others = [size for size in sizes if threshold <= size <= limit // 2]
        left = len(over_half) * limit - sum(over_half)
        bounds.append(len(alone) + len(over_half) + max(0, -(-(sum(others) - left) // limit)))
    return max(bounds)


def test_the_bound_is_that_of_the_paper():
    rng = np.random.default_rng(0)
    for _ in range(60):
        limit = int(rng.integers(5, 40))
        sizes = [1, *rng.integers(1, limit + 1, rng.integers(1, 12)).tolist()]  # with a 1 every sum can be reached
        assert lower_bound(sizes, Budget(sizes=(limit,), num_graphs=99)) == reference_bound(sizes, limit)


def sums(sizes, limit):
    """Everything that sizes, each used any number of times, add up to, no larger than the limit."""
    found = [True] + [False] * limit
    for total in range(1, limit + 1):
        found[total] = any(0 < size <= total and found[total - size] for size in sizes)
    return [total for total, reached in enumerate(found) if reached]


def test_the_largest_sum_is_that_of_trying_all():
    draw = random.Random(0)
    for _ in range(200):
        sizes, limit = [draw.randint(0, 15) for _ in range(draw.randint(0, 4))], draw.randint(0, 40)
        assert largest_sum(sizes, limit) == sums(sizes, limit)[-1]


def test_above_a_million_only_the_common_divisor_counts():
    million = 1 << 20
    assert largest_sum([300_000, 300_001], million) == 900_003
    assert largest_sum([300_000, 300_001], million + 1) == million + 1
    assert largest_sum([6, 0, 9], million + 3) == (million + 3) // 3 * 3
    assert largest_sum([0], million + 1) == largest_sum([], million + 1) == 0


def test_the_bound_of_each_dimension_is_that_of_the_paper_up_to_what_can_be_reached():
    draw = random.Random(0)
    for _ in range(150):
        limits = [draw.randint(1, 25) for _ in range(draw.randint(1, 3))]
        rows = [
            [draw.randint(draw.choice((0, limit // 2)), limit) for limit in limits] for _ in range(draw.randint(1, 9))
        ]
        num_graphs = draw.randint(1, 9)
        bounds = [-(-len(rows) // num_graphs)]
        for column, limit in zip(zip(*rows, strict=True), limits, strict=True):
            if any(column):
                bounds.append(reference_bound(column, sums(column, limit)[-1]))
        assert lower_bound(rows, Budget(sizes=tuple(limits), num_graphs=num_graphs)) == max(bounds)


def test_every_part_of_an_efficiency_by_hand():
    found = efficiency(Packs.from_lists([[0]]), [[1, 0], [1, 0]], Budget(sizes=(1, 0), num_graphs=4))
    assert (found.sizes, found.graphs, found.binds) == ((1.0, 0.0), 0.25, "nodes")
    assert (found.num_packs, found.lower_bound) == (1, 2)
    nothing = efficiency(Packs.from_lists([]), np.empty((0, 2), int), Budget(sizes=(1, 2), num_graphs=4))
    assert (nothing.sizes, nothing.graphs, nothing.num_packs, nothing.lower_bound) == ((1.0, 1.0), 1.0, 0, 0)

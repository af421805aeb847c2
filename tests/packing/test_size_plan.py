"""Histograms count what is there: against a plain count, and worked out by hand where sizes are rounded."""

import random
from collections import Counter

import numpy as np
import pytest

from popgeo.packing.packs import Budget
from popgeo.packing.size_plan import Histogram, SizePlan, histogram, to_units


def ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b


def test_any_histogram_counts_the_sizes_of_the_dimension_that_needs_most_packs():
    for seed in range(100):
        draw = random.Random(seed)
        limits, num_graphs = (draw.randint(5, 12), draw.randint(5, 30)), draw.choice((1, 3, 50))
        rows = [[draw.randint(0, limit) for limit in limits] for _ in range(draw.randint(0, 12))]
        packs = [ceil_div(sum(row[d] for row in rows), limits[d]) for d in range(2)]
        dim = packs.index(max(packs))
        found = histogram(np.array(rows, int).reshape(-1, 2), Budget(sizes=limits, num_graphs=num_graphs))
        kept = sorted(Counter(row[dim] for row in rows).items())
        assert list(zip(found.sizes, found.counts, strict=True)) == kept
        assert (found.dim, found.unit, found.capacity, found.num_graphs) == (dim, 1, limits[dim], num_graphs)
        # Even graphs without a node need a pack, and no more graphs share one than may.
        assert found.bound == max(*packs, ceil_div(len(rows), num_graphs), 1 if rows else 0)


def test_sizes_above_a_million_are_counted_too():
    found = histogram([2_000_000, 7, 2_000_000], Budget(sizes=(2_000_000,), num_graphs=2), exact=True)
    assert (found.sizes, found.counts, found.bound) == ((7, 2_000_000), (1, 2), 3)


@pytest.mark.parametrize(("limit", "unit"), [(632, 1), (633, 2), (1264, 3), (2000, 4), (20_000, 33)])
def test_many_sizes_are_rounded_up_to_units_of_which_a_pack_holds_some_hundreds(limit, unit):
    # 632 sizes and as many units of a pack are 399,424 states, 633 times 632 are above 400,000. Units grow by 1, from
    # 16 by 2, from 24 by 3: with 30, a pack would have 666 units and 667 sizes; with 33, 606 and 607.
    sizes = np.arange(1, limit + 1)
    found = histogram(sizes, Budget(sizes=(limit,), num_graphs=limit))
    capacity = limit // unit
    assert (found.unit, found.capacity) == (unit, capacity)
    kept = sorted(Counter(min(ceil_div(int(size), unit), capacity) for size in sizes).items())
    assert list(zip(found.sizes, found.counts, strict=True)) == kept
    assert histogram(sizes, Budget(sizes=(limit,), num_graphs=limit), exact=True).unit == 1


def test_sizes_in_units_are_rounded_up_but_to_no_more_than_a_pack_holds():
    assert to_units(np.array([0, 1, 3, 4, 10, 11]), 3, 11).tolist() == [0, 1, 1, 2, 3, 3]
    assert to_units(np.array([5]), 1, 4).tolist() == [5]


@pytest.mark.parametrize(("num_sizes", "unit"), [(400, 1), (401, 2)])
def test_sizes_are_rounded_above_400_000_states(num_sizes, unit):
    sizes = np.arange(601, 601 + num_sizes)[::-1] - (num_sizes - 400)  # of a pack of 1000 units
    assert histogram(sizes, Budget(sizes=(1000,), num_graphs=9)).unit == unit


def test_a_dimension_without_room_needs_no_packs():
    found = histogram([[0, 3], [0, 4]], Budget(sizes=(0, 5), num_graphs=9))
    assert (found.dim, found.bound, found.sizes, found.counts) == (1, 2, (3, 4), (1, 1))
    found = histogram([[0], [0], [0]], Budget(sizes=(0,), num_graphs=2))
    assert (found.dim, found.bound, found.capacity, found.sizes, found.counts) == (0, 2, 0, (0,), (3,))


def test_a_plan_counts_its_packs_and_graphs():
    plan = SizePlan(composition=((3, 1), (2,), (1, 1, 1)), counts=(4, 1, 2), bound=5)
    assert (plan.num_packs, plan.num_graphs, plan.gap, plan.dim, plan.unit) == (7, 15, 2, 0, 1)
    counted = Histogram(sizes=(3,), counts=(1,), capacity=4, num_graphs=2)
    assert (counted.dim, counted.unit, counted.bound) == (0, 1, 0)


def test_no_graphs_need_no_pack():
    assert histogram([], Budget(sizes=(0,), num_graphs=2)).bound == 0
    assert histogram([0], Budget(sizes=(0,), num_graphs=2)).bound == 1

"""Whole packs from fractions: by hand, and against trying every way to fill a pack."""

import random
from collections import Counter
from itertools import product

import numpy as np
import pytest

from popgeo.packing import Histogram
from popgeo.packing.column_generation import LinearSolution
from popgeo.packing.rounding import fill_exactly, round_to_packs


def fullest(left: dict[int, int], capacity: int) -> tuple[int, ...]:
    """Of all packs that use the most of the room, the one with the most of the largest size, then of the next ..."""
    sizes = sorted(left, reverse=True)
    best = max(
        (taken for taken in product(*(range(left[size] + 1) for size in sizes)) if np.dot(taken, sizes) <= capacity),
        key=lambda taken: (np.dot(taken, sizes), taken),
    )
    return tuple(size for size, number in zip(sizes, best, strict=True) for _ in range(number))


def test_each_pack_is_as_full_as_can_be_with_the_largest_graphs():
    draw = random.Random(0)
    for _ in range(60):
        sizes = draw.sample(range(10), draw.randint(1, 4))
        counts = [draw.randint(0, 4) for _ in sizes]
        capacity = draw.randint(max(sizes), 24)
        left, expected = dict(zip(sizes, counts, strict=True)), Counter()
        while any(left.values()):
            pack = fullest(left, capacity)
            expected[pack] += 1
            left = {size: number - pack.count(size) for size, number in left.items()}
        assert fill_exactly(sizes, counts, capacity, num_graphs=100) == expected


@pytest.mark.parametrize(
    ("sizes", "counts", "capacity", "num_graphs", "packs"),
    [
        ([1, 2], [5, 3], 100, 2, {(2, 2): 1, (2, 1): 1, (1, 1): 2}),
        ([4, 3], [2, 4], 12, 3, {(4, 4, 3): 1, (3, 3, 3): 1}),  # four threes would fill it, but are one too many
        ([4, 3], [2, 4], 12, 4, {(3, 3, 3, 3): 1, (4, 4): 1}),
        ([5, 0], [1, 4], 5, 3, {(5, 0, 0): 1, (0, 0): 1}),
        ([7], [3], 7, 1, {(7,): 3}),
        ([7, 5, 3], [1, 2, 5], 17, 2, {(7, 5): 1, (5, 3): 1, (3, 3): 2}),  # 7 + 5 + 5 would fill it
        ([10, 7, 6, 5], [2, 1, 1, 1], 30, 9, {(10, 7, 6, 5): 1, (10,): 1}),  # three tens would fill it; there are two
        ([], [], 5, 3, {}),
    ],
)
def test_the_number_of_graphs_limits_a_pack(sizes, counts, capacity, num_graphs, packs):
    assert fill_exactly(sizes, counts, capacity, num_graphs) == packs


def histogram(sizes, counts, capacity, num_graphs=9, **more) -> Histogram:
    return Histogram(sizes=sizes, counts=counts, capacity=capacity, num_graphs=num_graphs, **more)


def test_whole_packs_are_kept_and_the_rest_is_packed_again():
    # Twice 3 + 3, and of 1.9 times 2 + 2 + 2 one; of six twos three are left over, with a three.
    solution = LinearSolution(kinds=np.array([[0, 3], [2, 0]]), amounts=np.array([2 - 1e-10, 1.9]), bound=4)
    plan = round_to_packs(solution, histogram((2, 3), (6, 5), 6, dim=2, bound=1))
    assert dict(zip(plan.composition, plan.counts, strict=True)) == {(3, 3): 2, (2, 2, 2): 2, (3,): 1}
    assert plan.composition == tuple(sorted(plan.composition))
    assert (plan.bound, plan.dim, plan.unit) == (4, 2, 1)


def test_only_volume_bounds_sizes_that_were_rounded_up():
    solution = LinearSolution(kinds=np.array([[1]]), amounts=np.array([2.0]), bound=2)
    plan = round_to_packs(solution, histogram((5,), (2,), 9, bound=1, unit=3))
    assert (plan.composition, plan.counts, plan.bound, plan.unit) == (((5,),), (2,), 1, 3)


def test_packs_that_are_asked_for_too_many_graphs_take_what_is_left():
    # Twice 2 + 2, but there are three; then three times 3 + 2, but there are two threes.
    solution = LinearSolution(kinds=np.array([[2, 1], [0, 1]]), amounts=np.array([2.0, 3.0]), bound=4)
    plan = round_to_packs(solution, histogram((2, 3), (3, 2), 5))
    assert dict(zip(plan.composition, plan.counts, strict=True)) == {(2, 2): 1, (2,): 1, (3,): 2}
    solution = LinearSolution(kinds=np.array([[3, 0], [1, 0], [0, 1]]), amounts=np.array([4.0, 5.0]), bound=4)
    plan = round_to_packs(solution, histogram((1, 3, 5), (8, 1, 2), 6))
    # 3 + 1 + 1 + 1, then 1 + 1 + 1 and what is left of them; the fives are alone.
    assert dict(zip(plan.composition, plan.counts, strict=True)) == {(3, 1, 1, 1): 1, (1, 1, 1): 1, (1, 1): 1, (5,): 2}


def test_what_is_less_than_a_pack_is_packed_again_and_no_more_packs_are_made_than_asked_for():
    solution = LinearSolution(kinds=np.array([[2]]), amounts=np.array([0.5]), bound=1)
    assert round_to_packs(solution, histogram((2,), (3,), 6)).composition == ((2, 2, 2),)
    solution = LinearSolution(kinds=np.array([[1]]), amounts=np.array([1.0]), bound=1)
    plan = round_to_packs(solution, histogram((2,), (6,), 6))
    assert dict(zip(plan.composition, plan.counts, strict=True)) == {(2,): 1, (2, 2, 2): 1, (2, 2): 1}


def test_any_fractions_become_a_plan_of_every_graph():
    draw = random.Random(0)
    for _ in range(40):
        sizes = tuple(sorted(draw.sample(range(1, 9), 3)))
        counts = tuple(draw.randint(1, 9) for _ in sizes)
        kinds = [kind for kind in product(range(4), repeat=3) if 0 < np.dot(kind, sizes) <= 12][: draw.randint(1, 30)]
        amounts = np.array([draw.choice((0, 0.4, 1, 2.5)) for _ in kinds])
        plan = round_to_packs(
            LinearSolution(kinds=np.array(kinds).T, amounts=amounts, bound=0), histogram(sizes, counts, 12)
        )
        held = Counter[int]()
        for contents, number in zip(plan.composition, plan.counts, strict=True):
            assert 0 < sum(contents) <= 12
            assert number > 0
            assert list(contents) == sorted(contents, reverse=True)
            held.update({size: number * contents.count(size) for size in contents})
        assert held == dict(zip(sizes, counts, strict=True))

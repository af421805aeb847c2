"""Best-fit decreasing reproduces what was published, and its packs obey every budget."""

import csv
import random
from collections import Counter

import numpy as np
import pytest
import torch

from popgeo.packing import Budget
from popgeo.packing.decreasing import best_fit_decreasing, decreasing
from popgeo.packing.size_plan import Histogram
from tests.conftest import PUBLISHED


def published(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open() as file:
        return list(csv.DictReader(file))


def test_every_published_number_of_packs_is_reproduced():
    histograms = published("size_histograms.csv")
    counts = published("packing_counts.csv")
    assert counts
    for row in counts:
        sizes = {int(h["num_nodes"]): int(h["num_graphs"]) for h in histograms if h["dataset"] == row["dataset"]}
        plan = best_fit_decreasing(
            Histogram(
                sizes=tuple(sizes), counts=tuple(sizes.values()), capacity=int(row["max_num_nodes"]), num_graphs=10**6
            )
        )
        assert plan.num_packs == int(row["num_packs"]), row
        assert plan.num_graphs == sum(sizes.values())


def item_by_item(sizes: list[int], capacity: int, num_graphs: int) -> int:
    """Best-fit decreasing as textbooks state it: the number of packs."""
    packs: list[list[int]] = []
    for size in sorted(sizes, reverse=True):
        open_packs = [p for p in packs if sum(p) + size <= capacity and len(p) < num_graphs]
        if open_packs:
            max(open_packs, key=sum).append(size)
        else:
            packs.append([size])
    return len(packs)


@pytest.mark.parametrize("seed", range(20))
def test_the_histogram_form_needs_as_many_packs_as_the_textbook(seed: int):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, rng.integers(3, 30), size=rng.integers(1, 80))
    budget = Budget(sizes=(int(sizes.max() + rng.integers(0, 40)),), num_graphs=1000)
    assert len(decreasing(sizes, budget)) == item_by_item(sizes.tolist(), budget.sizes[0], budget.num_graphs)


def test_a_pack_takes_no_more_graphs_than_allowed():
    packs = decreasing([1] * 7, Budget(sizes=(100,), num_graphs=3))
    assert sorted(np.diff(packs.ptr)) == [
        1,
        3,
        3,
    ]


def test_graphs_of_no_nodes_share_packs_with_others():
    assert len(decreasing([5, 0, 0, 5], Budget(sizes=(5,), num_graphs=2))) == 2


def test_many_large_sizes_are_packed_exactly_as_the_textbook_does():
    sizes = np.random.default_rng(0).integers(1, 2_000_000, size=400)
    budget = Budget(sizes=(2_500_000,), num_graphs=50)
    packs = decreasing(sizes, budget, generator=torch.Generator().manual_seed(0))
    assert len(packs) == item_by_item(sizes.tolist(), 2_500_000, 50)
    assert max(int(sizes[pack].sum()) for pack in packs) <= 2_500_000


def textbook_packs(sizes: list[int], capacity: int, num_graphs: int) -> Counter[tuple[int, ...]]:
    """Best-fit decreasing item by item: the contents of the packs."""
    packs: list[list[int]] = []
    for size in sorted(sizes, reverse=True):
        open_packs = [pack for pack in packs if sum(pack) + size <= capacity and len(pack) < num_graphs]
        if open_packs:
            max(open_packs, key=sum).append(size)
        else:
            packs.append([size])
    return Counter(tuple(pack) for pack in packs)


def counted(sizes: list[int], capacity: int, num_graphs: int) -> Histogram:
    values = sorted(Counter(sizes).items())
    return Histogram(
        sizes=tuple(size for size, _ in values),
        counts=tuple(count for _, count in values),
        capacity=capacity,
        num_graphs=num_graphs,
        dim=2,
        unit=3,
        bound=1,
    )


def test_packs_hold_what_those_of_the_textbook_hold_however_few_graphs_they_may_hold():
    draw = random.Random(0)
    for _ in range(80):
        # Sizes so large that packs of equal room hold the same, or the textbook would leave the choice open.
        sizes = [size for size in draw.sample(range(10_000, 99_999), 6) for _ in range(draw.randint(1, 7))]
        capacity, num_graphs = draw.randint(max(sizes), 400_000), draw.choice((1, 2, 3, 5, 50))
        plan = best_fit_decreasing(counted(sizes, capacity, num_graphs))
        assert dict(zip(plan.composition, plan.counts, strict=True)) == textbook_packs(sizes, capacity, num_graphs)
        assert (plan.bound, plan.dim, plan.unit) == (1, 2, 3)
        assert plan.composition == tuple(sorted(plan.composition))


def test_small_sizes_fill_packs_as_far_as_the_textbook_does():
    draw = random.Random(0)
    for _ in range(80):
        sizes = [draw.randint(0, 9) for _ in range(draw.randint(1, 40))]
        capacity = draw.randint(max(*sizes, 1), 25)
        plan = best_fit_decreasing(counted(sizes, capacity, 1000))
        filled, expected = Counter[int](), Counter[int]()
        for contents, count in zip(plan.composition, plan.counts, strict=True):
            filled[sum(contents)] += count
        for contents, count in textbook_packs(sizes, capacity, 1000).items():
            expected[sum(contents)] += count
        assert filled == expected
        assert plan.num_graphs == len(sizes)


@pytest.mark.parametrize(
    ("sizes", "capacity", "num_graphs", "packs"),
    [
        ([0] * 7, 5, 3, {(0, 0, 0): 2, (0,): 1}),
        ([5, 0, 0, 0], 5, 3, {(5, 0, 0): 1, (0,): 1}),
        ([3] * 7, 6, 9, {(3, 3): 3, (3,): 1}),
        ([4, 4, 1, 1, 1], 6, 9, {(4, 1, 1): 1, (4, 1): 1}),
        ([4, 4, 4, 1], 5, 9, {(4, 1): 1, (4,): 2}),
        ([], 5, 2, {}),
    ],
)
def test_packs_by_hand(sizes, capacity, num_graphs, packs):
    plan = best_fit_decreasing(counted(sizes, capacity, num_graphs))
    assert dict(zip(plan.composition, plan.counts, strict=True)) == packs

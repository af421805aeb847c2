"""The grouping of one epoch's graphs into batches."""

import numpy as np
import pytest

from popgeo.data import OverSizeStrategy
from popgeo.loader import FixedSizeStrategy
from popgeo.loader.pack_graphs import PackChoices, pack_epoch
from popgeo.packing import Budget, Packs
from popgeo.random_numbers import generator_of

SIZES = np.array([[2, 1], [3, 0], [9, 9], [1, 1]])
BUDGET = Budget(sizes=(5, 5), num_graphs=3)


def plan_of(strategy=FixedSizeStrategy.StreamPack, **settings) -> Packs:
    choices = PackChoices(strategy=strategy, **settings)
    return pack_epoch(SIZES, BUDGET, choices, np.arange(len(SIZES)), generator_of(0, 0))


def test_every_epoch_and_seed_has_a_generator_of_its_own():
    states = {generator_of(seed, epoch).initial_seed() for seed in range(3) for epoch in range(3)}
    assert len(states) == 9
    assert generator_of(1, 2).initial_seed() == generator_of(1, 2).initial_seed()


def test_what_cannot_fit_is_refused_skipped_or_planned_for_trimming():
    with pytest.raises(
        ValueError,
        match=r"has 9 nodes, a batch holds 5 real ones: 4 too many. 1 graphs .* Raise num_nodes of",
    ):
        plan_of()
    skipped = plan_of(over_size_strategy=OverSizeStrategy.Skip)
    assert (skipped.indices.tolist(), skipped.skipped.tolist()) == ([0, 1, 3], [2])
    trimmed = plan_of(over_size_strategy=OverSizeStrategy.TrimNodesAndEdges)
    assert [pack.tolist() for pack in trimmed] == [[0, 1], [2], [3]]


def test_what_was_skipped_is_told_by_its_number_in_the_dataset():
    order = np.array([3, 2, 0, 1])
    choices = PackChoices(strategy=FixedSizeStrategy.PadToMax, over_size_strategy=OverSizeStrategy.Skip)
    plan = pack_epoch(SIZES, Budget(sizes=(3, 5), num_graphs=3), choices, order, generator_of(0, 0))
    assert [pack.tolist() for pack in plan] == [[3, 0]]  # 1 and 2 nodes fill a batch
    assert plan.skipped.tolist() == [2, 1]  # too large for any batch, and too large for this one


def test_an_empty_epoch_has_no_batches():
    for strategy in (FixedSizeStrategy.PadToMax, FixedSizeStrategy.StreamPack):
        plan = pack_epoch(SIZES, BUDGET, PackChoices(strategy=strategy), np.arange(0), generator_of(0, 0))
        assert len(plan) == 0

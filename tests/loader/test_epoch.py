"""Plans of an epoch, and their shards."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.data import OverSizeStrategy
from popgeo.loader.epoch import FixedSizeStrategy, Plan, epoch_generator, plan_epoch, shard

SIZES = np.array([[2, 1], [3, 0], [9, 9], [1, 1]])
LIMITS = np.array([5, 5])


def plan_of(strategy=FixedSizeStrategy.StreamPack, **settings):
    order = np.arange(len(SIZES))
    return plan_epoch(SIZES, LIMITS, 3, strategy, order, generator=epoch_generator(0, 0), **settings)


def test_every_epoch_and_seed_has_a_generator_of_its_own():
    states = {epoch_generator(seed, epoch).initial_seed() for seed in range(3) for epoch in range(3)}
    assert len(states) == 9
    assert epoch_generator(1, 2).initial_seed() == epoch_generator(1, 2).initial_seed()


def test_what_cannot_fit_is_refused_skipped_or_planned_for_trimming():
    with pytest.raises(ValueError, match=r"Graph 2 has 9 nodes, a batch holds 5 real ones: 4 too many. 1 graphs"):
        plan_of()
    skipped = plan_of(over_size_strategy=OverSizeStrategy.Skip)
    assert (skipped.ids.tolist(), skipped.num_skipped) == ([0, 1, 3], 1)
    trimmed = plan_of(over_size_strategy=OverSizeStrategy.TrimNodesAndEdges)
    assert [trimmed.pack(i).tolist() for i in range(len(trimmed))] == [[0, 1], [2], [3]]


def test_an_empty_epoch_has_no_batches():
    for strategy in (FixedSizeStrategy.PadToMax, FixedSizeStrategy.StreamPack):
        plan = plan_epoch(SIZES, LIMITS, 3, strategy, np.arange(0), generator=epoch_generator(0, 0))
        assert len(plan) == 0


def test_splitting_keeps_the_order_and_never_repeats_a_graph():
    plan = Plan(ids=np.arange(7), ptr=np.array([0, 4, 7]))
    assert shard(plan, 0, 1, 3).ptr.tolist() == [0, 2, 4, 7]
    assert [shard(plan, rank, 3, 1).ids.tolist() for rank in range(3)] == [[0, 1], [2, 3], [4, 5, 6]]


def test_batches_of_padding_alone_fill_up_what_cannot_be_split():
    plan = Plan(ids=np.arange(2), ptr=np.array([0, 2]))
    assert shard(plan, 0, 1, 4).ptr.tolist() == [0, 1, 2, 2, 2]


def test_dropping_the_last_drops_what_does_not_fill_an_item():
    plan = Plan(ids=np.arange(5), ptr=np.arange(6))
    kept = shard(plan, 0, 1, 2, drop_last=True)
    assert (kept.ids.tolist(), len(kept)) == ([0, 1, 2, 3], 4)


@settings(deadline=None, max_examples=50)
@given(counts=st.lists(st.integers(0, 6), max_size=8), world_size=st.integers(1, 4), group=st.integers(1, 3))
def test_shards_hold_every_graph_once(counts, world_size, group):
    ptr = np.concatenate([[0], np.cumsum(np.array(counts, dtype=np.int64))])
    plan = Plan(ids=np.arange(ptr[-1])[::-1].copy(), ptr=ptr)
    shards = [shard(plan, rank, world_size, group) for rank in range(world_size)]
    assert {len(part) % group for part in shards} == {0}
    assert len({len(part) for part in shards}) == 1
    assert sorted(i for part in shards for i in part.ids.tolist()) == list(range(int(ptr[-1])))

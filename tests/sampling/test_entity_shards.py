"""Claims about entities in shards and triples in batches by pairs of shards."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from popgeo.sampling import EntityShards
from popgeo.sampling.entity_shards import deal_triples, pair_of


@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 3))
def test_each_entity_stands_once_in_shards_of_nearly_equal_size(num_entities: int, num_shards: int, seed: int):
    num_shards = min(num_shards, num_entities)
    shards = EntityShards.deal(num_entities, num_shards, seed)
    assert shards.sizes.max() - shards.sizes.min() <= 1
    assert sorted(shards.entity[shards.entity >= 0].tolist()) == list(range(num_entities))
    assert torch.equal(shards.entity[shards.shard, shards.row], torch.arange(num_entities))
    # Entities fill the first rows of a shard, so that a random row below its size is one.
    assert all((row[:size] >= 0).all() for row, size in zip(shards.entity, shards.sizes, strict=True))
    table = torch.randn(num_entities, 3)
    spread = shards.spread(table)
    assert torch.equal(shards.collect(spread), table)
    assert (spread[shards.entity < 0] == 0).all()


def test_one_shard_keeps_the_order_of_a_checkpoint():
    assert EntityShards.deal(5).entity.tolist() == [[0, 1, 2, 3, 4]]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 7), st.booleans())
def test_each_triple_is_dealt_once_to_its_pair_and_spread_evenly(pairs: list[int], slots: int, shuffle: bool):
    pair = torch.tensor(pairs, dtype=torch.int64)
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(1)) if shuffle else None
    table = deal_triples(pair, 4, slots, order)
    most = max([pairs.count(number) for number in range(4)])
    assert len(table) == max(1, -(-most // slots))  # as few as hold the pair that has most
    assert sorted(table[table >= 0].tolist()) == list(range(len(pairs)))
    for number in range(4):
        of_pair = table[:, number]
        assert (pair[of_pair[of_pair >= 0]] == number).all()
        counts = (of_pair >= 0).sum(1)
        assert counts.max() - counts.min() <= 1


def test_what_does_not_fit_is_refused():
    shards = EntityShards.deal(4, num_shards=2)
    with pytest.raises(ValueError, match="give 1 to 4, the number of entities"):
        EntityShards.deal(4, num_shards=5)
    with pytest.raises(ValueError, match="contains 4; indices"):
        pair_of(torch.tensor([[0, 0, 4]]), shards)
    with pytest.raises(ValueError, match=r"pass int64 \[num_triples, 3\]"):
        pair_of(torch.tensor([[0, 4]]), shards)
    with pytest.raises(ValueError, match="3 rows for 4 entities"):
        shards.spread(torch.zeros(3, 2))

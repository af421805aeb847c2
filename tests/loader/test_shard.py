"""Shards of ranks, and items of several batches."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.data.super_batch import split
from popgeo.loader.shard import in_whole_steps
from popgeo.packing import Packs
from tests.support.graphs import same
from tests.support.loaders import GRAPHS, loader_of, seeds


def test_splitting_keeps_the_order_and_never_repeats_a_graph():
    packs = Packs(np.arange(7), np.array([0, 4, 7]))
    assert in_whole_steps(packs, 3).ptr.tolist() == [0, 2, 4, 7]


def test_batches_of_padding_alone_fill_up_what_cannot_be_split():
    packs = Packs(np.arange(2), np.array([0, 2]))
    assert in_whole_steps(packs, 4).ptr.tolist() == [0, 1, 2, 2, 2]


def test_dropping_the_last_drops_what_does_not_fill_an_item():
    packs = Packs(np.arange(5), np.arange(6))
    kept = in_whole_steps(packs, 2, drop_last=True)
    assert (kept.indices.tolist(), len(kept)) == ([0, 1, 2, 3], 4)


@settings(deadline=None, max_examples=50)
@given(counts=st.lists(st.integers(0, 6), max_size=8), world_size=st.integers(1, 4), group=st.integers(1, 3))
def test_the_packs_of_all_ranks_hold_every_graph_once(counts, world_size, group):
    ptr = np.concatenate([[0], np.cumsum(np.array(counts, dtype=np.int64))])
    packs = Packs(np.arange(ptr[-1])[::-1].copy(), ptr)
    shards = [in_whole_steps(packs, world_size * group)[rank::world_size] for rank in range(world_size)]
    assert {len(part) % group for part in shards} == {0}
    assert len({len(part) for part in shards}) == 1
    assert sorted(i for part in shards for i in part.indices.tolist()) == list(range(int(ptr[-1])))


@settings(deadline=None, max_examples=15)
@given(world_size=st.integers(1, 5), items_of=st.integers(1, 4), num_graphs=st.integers(1, 40), shuffle=st.booleans())
def test_shards_are_disjoint_complete_and_of_equal_length(world_size, items_of, num_graphs, shuffle):
    shards = [
        loader_of(GRAPHS[:num_graphs], shuffle=shuffle, rank=rank, world_size=world_size, options=items_of)
        for rank in range(world_size)
    ]
    lengths = {len(loader) for loader in shards}  # afterwards that of the next epoch
    assert len(lengths) == 1
    loaded = [list(loader) for loader in shards]
    assert {len(batches) for batches in loaded} == lengths
    assert sorted(i for batches in loaded for i in seeds(batches)) == list(range(num_graphs))


class Replicated:
    """Options of an executor with four replicas."""

    device_iterations, replication_factor, gradient_accumulation = 1, 4, 2


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_the_replicas_and_load_what_those_would_get_in_one_process(world_size, monkeypatch):
    alone = [seeds([part]) for item in loader_of(shuffle=True, options=Replicated()) for part in split(item)]
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: world_size)
    for rank in range(world_size):
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        items = loader_of(shuffle=True, options=Replicated())
        parts = [seeds([part]) for item in items for part in split(item)]
        assert parts == [part for number, part in enumerate(alone) if number % world_size == rank]
    whole = len(loader_of(options=1, rank=0, world_size=1))
    assert len(loader_of(options=1)) == whole // world_size  # a number of batches leaves the ranks to the group
    with pytest.raises(ValueError, match="replication_factor is 4, which 3 ranks cannot share evenly"):
        loader_of(options=Replicated(), rank=0, world_size=3)


def test_one_item_of_several_batches_is_concatenated_on_dimension_0(native):
    class Options:
        device_iterations, replication_factor, gradient_accumulation = 2, 1, 2

    single = list(loader_of())
    items = list(loader_of(options=Options()))
    item = items[0]
    assert item.edge_index.shape == (8, 40)
    assert item.batch.shape == (100,)
    assert item.ptr.shape == (28,)
    assert len(item.name) == 24
    assert (item.num_nodes, item.num_edges, item.num_graphs) == (25, 40, 6)
    for name in ("x", "edge_index", "batch", "ptr", "y", "nodes_mask", "edges_mask", "graphs_mask"):
        assert same(item[name], torch.cat([batch[name] for batch in single[:4]])), name
    assert seeds(items) == list(range(40))
    with pytest.raises(ValueError, match=r"without \['device_iterations'"):
        loader_of(options=object())

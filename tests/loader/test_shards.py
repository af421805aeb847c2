"""Items of several batches, and what each rank loads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.data.super_batch import split
from tests.data.graphs import same
from tests.loader.loaders import GRAPHS, loader_of, seeds


@settings(deadline=None, max_examples=15)
@given(world_size=st.integers(1, 5), items_of=st.integers(1, 4), num_graphs=st.integers(1, 40), shuffle=st.booleans())
def test_shards_are_disjoint_complete_and_of_equal_length(world_size, items_of, num_graphs, shuffle):
    shards = [
        loader_of(GRAPHS[:num_graphs], shuffle=shuffle, rank=rank, world_size=world_size, options=items_of)
        for rank in range(world_size)
    ]
    assert len({len(loader) for loader in shards}) == 1
    loaded = [list(loader) for loader in shards]
    assert {len(batches) for batches in loaded} == {len(shards[0])}
    assert sorted(i for batches in loaded for i in seeds(batches)) == list(range(num_graphs))


class Replicated:
    """What an executor with four replicas asks for."""

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
    assert len(loader_of(options=1)) == len(loader_of(options=1, rank=0, world_size=1))  # a number speaks of no ranks
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

"""Claims about every epoch of the loader of graphs."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader

from popgeo.data import FixedSizeCollater, FixedSizeOptions
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from popgeo.packing import Packs
from tests.support.graphs import assert_real_part_equals, same
from tests.support.loaders import GRAPHS, OPTIONS, loader_of, seeds

STRATEGIES = list(FixedSizeStrategy)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_graph_comes_exactly_once_in_batches_of_one_shape(strategy, shuffle, native):
    loader = loader_of(strategy=strategy, shuffle=shuffle, fixed_size_options=FixedSizeOptions(31, 46, 6))
    for _ in range(2):
        expected = len(loader)
        batches = list(loader)
        assert len(batches) == expected
        assert sorted(seeds(batches)) == list(range(40))
        assert {tuple(batch.edge_index.shape) for batch in batches} == {(2, 46)}
        assert {(batch.num_nodes, batch.num_graphs, len(batch.name)) for batch in batches} == {(31, 6, 6)}


def test_pad_to_max_puts_one_graph_less_than_batch_size_into_each_batch():
    loader = FixedSizeDataLoader(GRAPHS, batch_size=8)
    assert [int(batch.graphs_mask.sum()) for batch in loader] == [7, 7, 7, 7, 7, 5]
    assert len(FixedSizeDataLoader(GRAPHS, batch_size=8, drop_last=True)) == 5


def test_the_real_part_equals_pyg(native):
    loader = loader_of(shuffle=True)
    for index, batch in enumerate(loader):
        assert_real_part_equals(batch, [GRAPHS[i] for i in loader.plan()[index]])


def test_every_epoch_has_its_own_order_and_the_same_seed_repeats_it():
    loader, again = loader_of(shuffle=True, seed=3), loader_of(shuffle=True, seed=3)
    first, second = seeds(loader), seeds(loader)
    assert first != second
    assert [seeds(again), seeds(again)] == [first, second]
    again.set_epoch(0)
    assert seeds(again) == first
    assert seeds(loader_of(shuffle=True, seed=4)) != first


def test_without_shuffle_the_order_of_the_dataset_is_kept():
    assert seeds(loader_of()) == list(range(40))
    assert seeds(loader_of(strategy=FixedSizeStrategy.PadToMax, fixed_size_options=None, batch_size=5)) == list(
        range(40)
    )


def test_breaking_off_an_epoch_starts_the_next_one():
    loader = loader_of(shuffle=True)
    first = seeds([next(iter(loader))])
    assert seeds(loader_of(shuffle=True))[: len(first)] == first
    assert loader.epoch == 0
    next(iter(loader))
    assert loader.epoch == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_can_be_resumed_in_the_middle(workers):
    settings = {"shuffle": True, "num_workers": workers}
    whole = list(loader_of(shuffle=True))  # workers change no batch
    loader = loader_of(**settings)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    resumed = loader_of(**settings)
    resumed.load_state_dict(state)
    assert seeds(resumed) == seeds(whole[3:])
    assert resumed.epoch == 1
    with pytest.raises(ValueError, match="of 40 graphs, the loader has 3"):
        loader_of(GRAPHS[:3]).load_state_dict(state)


def test_indices_of_32_bits(native):
    batch = next(iter(loader_of(index_dtype=torch.int32, sort_edges=True)))
    names = ("edge_index", "batch", "ptr", "rowptr", "root_index")
    assert {batch[name].dtype for name in names} == {torch.int32}
    assert batch.z.dtype == torch.int64


def test_the_loader_looks_like_one_of_torch():
    loader = loader_of(GRAPHS, shuffle=True)
    assert isinstance(loader, DataLoader)
    assert loader.dataset is GRAPHS
    assert (loader.batch_size, loader.num_workers) == (6, 0)
    counts = [len(ids) for ids in loader.plan()]
    assert counts == [len(ids) for ids in loader.batch_sampler]
    assert repr(loader_of()).startswith("FixedSizeDataLoader(40 graphs -> ")
    rebuilt = DataLoader(GRAPHS, batch_sampler=loader_of().batch_sampler, collate_fn=loader_of().collate_fn)
    assert same(next(iter(rebuilt)).x, next(iter(loader_of())).x)


def test_the_next_epoch_is_planned_only_when_asked_for():
    calls = []

    def counting(sizes, budget, *, generator=None):
        calls.append(len(sizes))
        return Packs.from_lists([[i] for i in range(len(sizes))])

    loader = loader_of(strategy=counting)
    assert calls == []
    assert len(loader) == len(list(loader)) == 40
    assert len(calls) == 1


@pytest.mark.parametrize("backend", ["eager"])
def test_an_epoch_under_torch_compile_compiles_once(backend):
    torch._dynamo.reset()
    graphs_seen = []

    def count(module, inputs):
        graphs_seen.append(module)
        return module.forward

    model = torch.nn.Linear(3, 1)

    @torch.compile(dynamic=False, fullgraph=True, backend=count)
    def loss(x, edge_index, batch, y, graphs_mask):
        messages = x.index_select(0, edge_index[0])
        nodes = torch.zeros_like(x).index_add(0, edge_index[1], messages)
        energy = torch.zeros(graphs_mask.shape[0], 1).index_add(0, batch, model(nodes))
        return ((energy - y[:, :1]) ** 2 * graphs_mask[:, None]).sum() / graphs_mask.sum()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in loader_of(shuffle=True):
        optimizer.zero_grad()
        loss(batch.x, batch.edge_index, batch.batch, batch.y, batch.graphs_mask).backward()
        optimizer.step()
    assert len(graphs_seen) == 1


def test_a_collater_made_by_hand_gives_the_batches_of_the_loader():
    batch = next(iter(loader_of()))
    count = int(batch.graphs_mask.sum())
    assert same(FixedSizeCollater(OPTIONS)(GRAPHS[:count]).edge_index, batch.edge_index)

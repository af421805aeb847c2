"""What holds for every epoch of the loader."""

import itertools
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, WeightedRandomSampler
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.data import Dataset as PyGDataset

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore, OverSizeStrategy, unpad
from popgeo.data.super_batch import split
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy, stream_batches
from popgeo.packing import Packs
from tests.data.graphs import assert_real_part_equals, assert_same_graphs, graph, hetero_graph, same

STRATEGIES = list(FixedSizeStrategy)
GRAPHS = [graph(2 + seed % 5, 3 * (seed % 4), seed) for seed in range(40)]
OPTIONS = FixedSizeOptions(num_nodes=25, num_edges=40, num_graphs=6)


class InMemory(InMemoryDataset):
    """A dataset in memory, as PyG's own are."""

    def __init__(self, graphs, transform=None):
        super().__init__(None, transform)
        self.data, self.slices = self.collate(graphs)


class OnDisk(PyGDataset):
    """A dataset that makes its graphs when asked."""

    def len(self):
        return len(GRAPHS)

    def get(self, idx):
        return GRAPHS[idx]


def loader_of(dataset=GRAPHS, strategy=FixedSizeStrategy.StreamPack, **kwargs) -> FixedSizeDataLoader:
    kwargs.setdefault("fixed_size_options", OPTIONS)
    return FixedSizeDataLoader(dataset, fixed_size_strategy=strategy, **kwargs)


def seeds(batches) -> list[int]:
    """Which graphs the batches hold, in order: `charge` numbers the graphs of this file."""
    return [int(g.charge) for batch in batches for g in unpad(batch)]


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
        assert_real_part_equals(batch, [GRAPHS[i] for i in loader._plan[1].pack(index)])


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
    whole = list(loader_of(**settings))
    loader = loader_of(**settings)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    resumed = loader_of(**settings)
    resumed.load_state_dict(state)
    assert seeds(resumed) == seeds(whole[3:])
    assert resumed.epoch == 1
    with pytest.raises(ValueError, match="of 40 graphs, this one has 3"):
        loader_of(GRAPHS[:3]).load_state_dict(state)


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


def test_reused_buffers_hold_what_fresh_memory_does(native):
    fresh = list(loader_of(shuffle=True))
    for background in (False, True):
        loader = loader_of(shuffle=True, num_buffers=6, background=background)
        places = set()
        previous = []
        for index, batch in enumerate(loader):
            assert same(batch.x, fresh[index].x)
            previous = [*previous, (batch, fresh[index])][-3:]  # num_buffers // 2 of them stay valid
            assert all(same(own.pos, other.pos) for own, other in previous)
            places.add(batch.x.data_ptr())
        assert len(places) <= (12 if background else 6)


def test_moving_a_reused_batch_to_another_dtype_leaves_the_buffer_alone():
    loader = loader_of(num_buffers=2)
    for batch in loader:
        batch.x = batch.x.double()
        del batch.y
    assert next(iter(loader)).y.shape == (6, 5)


def test_a_background_thread_changes_nothing_and_passes_errors_on():
    assert seeds(loader_of(shuffle=True, background=True)) == seeds(loader_of(shuffle=True))
    next(iter(loader_of(background=True)))  # an iterator that is dropped does not hang

    def fail(data):
        fail.calls += 1
        if fail.calls > 60:
            raise RuntimeError("in a transform")
        return data

    fail.calls = 0
    with pytest.warns(UserWarning, match="has a transform"):
        loader = loader_of(InMemory(GRAPHS, transform=fail), background=True)
    with pytest.raises(RuntimeError, match="in a transform"):
        list(loader)


@pytest.mark.parametrize("items_of", [1, 2])
def test_worker_processes_make_the_same_batches(items_of):
    alone = loader_of(shuffle=True, options=items_of)
    helped = loader_of(shuffle=True, options=items_of, num_workers=2, persistent_workers=True)
    for _ in range(2):
        assert seeds(helped) == seeds(alone)


def test_every_kind_of_dataset_gives_the_same_batches():
    dataset = InMemory(GRAPHS)
    expected = seeds(loader_of())
    order = torch.randperm(40).tolist()
    assert seeds(loader_of(dataset)) == expected
    assert seeds(loader_of(FlatStore.from_dataset(dataset))) == expected
    assert seeds(loader_of(ConcatDataset([dataset[:7], Subset(dataset, range(7, 40))]))) == expected
    assert seeds(loader_of(dataset[order])) == order
    assert seeds(loader_of(Subset(dataset[order], [3, 1]))) == [order[3], order[1]]
    assert seeds(loader_of(Subset(GRAPHS, order))) == order
    assert_same_graphs([g for b in loader_of(dataset) for g in unpad(b)], list(dataset))


def test_the_arrays_of_a_dataset_in_memory_are_not_copied():
    dataset = InMemory(GRAPHS)
    store = loader_of(dataset[:9]).source.store
    assert store.attributes[0].values.data_ptr() == dataset._data.x.data_ptr()


def test_a_random_transform_runs_anew_each_epoch_and_says_that_it_is_slow():
    def jitter(data):
        data.pos = data.pos + torch.rand_like(data.pos)
        return data

    with pytest.warns(UserWarning, match="has a transform, which may be random, so each graph is fetched anew"):
        loader = loader_of(InMemory(GRAPHS, transform=jitter))
    assert not same(next(iter(loader)).pos, next(iter(loader)).pos)
    assert sorted(seeds(loader)) == list(range(40))


def test_a_dataset_on_disk_is_loaded_graph_by_graph():
    with pytest.warns(UserWarning, match="OnDisk does not hold its graphs in memory"):
        loader = loader_of(OnDisk(), options=3)
    assert seeds(loader) == list(range(40))


def test_samplers_decide_the_order_and_batch_samplers_the_batches():
    sampler = WeightedRandomSampler([0.0] * 20 + [1.0] * 20, 50)
    drawn = seeds(loader_of(sampler=sampler))
    assert len(drawn) == 50
    assert min(drawn) >= 20
    loader = loader_of(strategy=FixedSizeStrategy.PadToMax, batch_sampler=[[3, 1], [7]])
    assert [[int(g.charge) for g in unpad(batch)] for batch in loader] == [[3, 1], [7]]
    with pytest.raises(ValueError, match="excludes shuffle"):
        loader_of(batch_sampler=[[1]])


def test_a_function_of_the_users_is_a_strategy_and_is_checked():
    def one_each(sizes, budget, *, generator=None):
        return Packs.from_lists([[i] for i in range(len(sizes))])

    def twice(sizes, budget, *, generator=None):
        return Packs.from_lists([[0, 0]])

    def all_at_once(sizes, budget, *, generator=None):
        return Packs.from_lists([range(len(sizes))])

    assert len(loader_of(strategy=one_each)) == 40
    with pytest.raises(ValueError, match="uses graph 0 2 times"):
        len(loader_of(strategy=twice))
    with pytest.raises(ValueError, match="must stay within its budget"):
        len(loader_of(strategy=all_at_once))


def test_skipping_leaves_out_what_cannot_fit_and_counts_it():
    graphs = [*GRAPHS[:5], graph(30, 0, 99), *GRAPHS[5:]]
    with pytest.raises(
        ValueError, match=r"Graph 5 has 30 nodes, a batch holds 24 real ones: 6 too many. 1 graphs do not"
    ):
        len(loader_of(graphs))
    loader = loader_of(graphs, over_size_strategy=OverSizeStrategy.Skip)
    assert seeds(loader) == list(range(40))
    assert loader.num_skipped == 1


def test_skipping_works_for_pad_to_max_too():
    settings = {"strategy": FixedSizeStrategy.PadToMax, "fixed_size_options": FixedSizeOptions(15, 40, 6)}
    with pytest.raises(ValueError, match=r"Batch has 20 nodes, FixedSizeOptions.num_nodes is 15 with one kept"):
        len(loader_of(**settings))
    loader = loader_of(**settings, over_size_strategy="Skip")
    num_skipped = loader.num_skipped
    kept = seeds(loader)
    assert kept[:5] == [0, 1, 2, 3, 5]  # 2, 3, 4 and 5 nodes fill a batch; the 6 of graph 4 are too many
    assert len(set(kept)) == len(kept) == 40 - num_skipped


def test_trimming_is_repeatable_and_says_what_each_graph_lost():
    graphs = [*GRAPHS[:5], graph(30, 60, 99), *GRAPHS[5:]]
    graphs = [Data(**{k: v for k, v in g.to_dict().items() if k != "root_index"}) for g in graphs]
    settings = {"over_size_strategy": OverSizeStrategy.TrimNodesAndEdges, "shuffle": True, "sort_edges": True}
    batches = list(loader_of(graphs, **settings))
    again = list(loader_of(graphs, **settings, num_workers=1))
    assert all(same(own.x, other.x) for own, other in zip(batches, again, strict=True))
    assert sorted(seeds(batches)) == [*range(40), 99]
    lost = torch.cat([batch.num_trimmed_nodes[batch.graphs_mask] for batch in batches])
    assert lost.sum() == 6
    assert {batch.num_trimmed_edges.shape for batch in batches} == {(6,)}


def test_heterogeneous_budgets_hold_for_each_type():
    graphs = [hetero_graph(1 + i % 3, 1 + i % 4, i % 5, i % 3, seed=i) for i in range(20)]
    options = FixedSizeOptions({"a": 6, "b": 9}, 12, 5)
    batches = list(loader_of(graphs, fixed_size_options=options))
    assert {tuple(batch["a"].x.shape) for batch in batches} == {(6, 2)}
    assert {batch["b"].nodes_mask.shape for batch in batches} == {(9,)}
    assert_same_graphs([g for batch in batches for g in unpad(batch)], graphs)
    assert options.num_edges == 12  # the user's own options stay as they were


def test_stream_packing_without_options_measures_the_dataset():
    loader = FixedSizeDataLoader(GRAPHS, 5, fixed_size_strategy="StreamPack")
    assert seeds(loader) == list(range(40))


def test_point_clouds_need_no_edges():
    clouds = [Data(pos=torch.rand(n, 3), y=torch.rand(1)) for n in (3, 4, 5)]
    loader = FixedSizeDataLoader(clouds, num_nodes=11, num_edges=0, batch_size=3)
    assert next(iter(loader)).edges_mask.shape == (0,)
    assert loader.fixed_size_options.num_edges == 0
    assert FixedSizeDataLoader(clouds, 3).fixed_size_options.num_edges == 0


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
    assert [len(ids) for ids in loader.batch_sampler] == [int(b.graphs_mask.sum()) for b in loader]
    assert repr(loader_of()).startswith("FixedSizeDataLoader(40 graphs -> ")
    rebuilt = DataLoader(GRAPHS, batch_sampler=loader_of().batch_sampler, collate_fn=loader_of().collate_fn)
    assert same(next(iter(rebuilt)).x, next(iter(loader_of())).x)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"batch_size": 3}, "batch_size is 3 and fixed_size_options.num_graphs is 6"),
        ({"num_nodes": 3}, "Both fixed_size_options and num_nodes"),
        ({"fixed_size_options": None, "num_edges": 3}, "num_edges is given without num_nodes"),
        ({"strategy": "Best"}, r"'Best' is no FixedSizeStrategy; pass one of \['PadToMax'"),
        ({"collate_fn": list}, "takes no collate_fn"),
        ({"generator": torch.Generator()}, "takes no generator"),
        ({"rank": 2, "world_size": 2}, "rank is 2 and world_size 2"),
        ({"rank": 0}, "rank is 0 and world_size None; pass both"),
        ({"options": 0}, "asks for 0 batches"),
        ({"sampler": [1], "shuffle": True}, "excludes shuffle"),
    ],
)
def test_arguments_that_contradict_are_refused(arguments, found):
    with pytest.raises(ValueError, match=found):
        loader_of(**arguments)


def test_a_dataset_that_cannot_be_indexed_is_streamed():
    class Endless(IterableDataset):
        read = 0

        def __iter__(self):
            for one in itertools.cycle(GRAPHS):
                Endless.read += 1
                yield one

    with pytest.raises(ValueError, match=r"is a Endless, which cannot be indexed.*stream_batches"):
        FixedSizeDataLoader(Endless(), 3)
    collater = FixedSizeCollater(FixedSizeOptions(25, 40, 13), add_masks_to_batch=True)
    stream = stream_batches(Endless(), collater, window=64, generator=torch.Generator().manual_seed(0))
    batches = list(itertools.islice(stream, 50))
    assert {tuple(batch.x.shape) for batch in batches} == {(25, 3)}
    assert sum(int(batch.nodes_mask.sum()) for batch in batches) / (50 * 24) > 0.95
    assert len(seeds(batches)) < Endless.read < 1000


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


def test_no_warning_is_raised_for_a_flat_dataset():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader_of(InMemory(GRAPHS)))


def test_a_collater_made_by_hand_gives_the_batches_of_the_loader():
    batch = next(iter(loader_of()))
    count = int(batch.graphs_mask.sum())
    assert same(FixedSizeCollater(OPTIONS)(GRAPHS[:count]).edge_index, batch.edge_index)
    assert isinstance(loader_of().plan().ids, np.ndarray)


def test_a_loader_that_cannot_load_still_says_what_it_is():
    loader = FixedSizeDataLoader(GRAPHS, num_nodes=2, num_edges=0, batch_size=3)
    assert repr(loader).startswith("FixedSizeDataLoader(40 graphs; no batches: Graph ")

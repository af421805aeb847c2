"""Seed edges: their ends come first, negatives are no edges, and all batches have equally many labels."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from popgeo import FixedSizeLinkLoader, FixedSizeOptions
from tests.support.large_graphs import check_is_part_of, library, random_graph

DATA = random_graph()
SIZES = FixedSizeOptions(num_nodes=61, num_edges=240)


def loader_of(data=DATA, num_neighbors=(3,), **kwargs) -> FixedSizeLinkLoader:
    kwargs.setdefault("fixed_size_options", SIZES)
    kwargs.setdefault("batch_size", 50)
    kwargs.setdefault("seed", 0)
    return FixedSizeLinkLoader(data, list(num_neighbors), **kwargs)


def links(batch) -> list[tuple[int, int]]:
    real = batch.edge_label_mask
    return [tuple(ends) for ends in batch.n_id[batch.edge_label_index[:, real]].T.tolist()]


def test_every_edge_is_a_seed_once_and_its_ends_come_first(native):
    seen = []
    for batch in loader_of(shuffle=True):
        check_is_part_of(batch, DATA)
        ends = batch.edge_label_index[:, batch.edge_label_mask]
        assert batch.seeds_mask[ends].all()
        assert int(ends.max()) < int(batch.seeds_mask.sum())
        assert (batch.edge_label_index.shape, batch.edge_label.shape) == ((2, 50), (50,))
        assert not batch.nodes_mask[batch.edge_label_index[:, ~batch.edge_label_mask]].any()
        seen += links(batch)
    assert sorted(seen) == sorted(map(tuple, DATA.edge_index.T.tolist()))


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_negatives_are_fixed_in_number_and_are_no_edges(mode):
    edges = {tuple(ends) for ends in DATA.edge_index.T.tolist()}
    loader = loader_of(neg_sampling=NegativeSampling(mode, 2), batch_size=20)
    for batch in loader:
        found, label = links(batch), batch.edge_label[batch.edge_label_mask]
        positives = len(label) // 3
        assert label.tolist() == [1.0] * positives + [0.0] * (2 * positives)
        assert all(ends in edges for ends in found[:positives])
        assert not any(ends in edges for ends in found[positives:])
        assert batch.edge_label.shape == (60,)
        if mode == "triplet":
            assert [s for s, _ in found[positives:]] == [s for s, _ in found[:positives] for _ in range(2)]


def test_a_last_batch_has_fewer_links():
    batches = list(loader_of(batch_size=100, neg_sampling_ratio=0.5))
    assert [int(batch.edge_label_mask.sum()) for batch in batches] == [150, 150, 60]


def test_labels_of_ones_own_are_kept():
    label = torch.arange(240) * 2
    loader = loader_of(edge_label=label)
    batch = next(iter(loader))
    assert batch.edge_label.dtype == torch.int64
    assert batch.edge_label.tolist() == label[:50].tolist()


def test_heterogeneous_links():
    data = library()
    key = ("author", "writes", "paper")
    sizes = FixedSizeOptions({"paper": 31, "author": 21}, 90)
    loader = loader_of(data, edge_label_index=key, neg_sampling="binary", fixed_size_options=sizes, batch_size=16)
    for batch in loader:
        store = batch[key]
        positives = store.edge_label_mask & (store.edge_label == 1)
        left, right = store.edge_label_index[:, positives]
        found = zip(batch["author"].n_id[left].tolist(), batch["paper"].n_id[right].tolist(), strict=True)
        assert set(found) <= set(map(tuple, data[key].edge_index.T.tolist()))
        assert batch["author"].seeds_mask[left].all()
        assert batch["paper"].seeds_mask[right].all()
    some = loader_of(data, edge_label_index=(key, data[key].edge_index[:, :7]), fixed_size_options=sizes)
    assert int(next(iter(some))[key].edge_label_mask.sum()) == 7


@pytest.mark.parametrize("hetero", [False, True])
def test_with_times_every_end_has_neighbors_of_its_own_and_none_is_newer(hetero):
    data = library() if hetero else Data(x=torch.ones(60, 1), edge_index=DATA.edge_index)
    key = ("author", "writes", "paper")
    for node_type in data.node_types if hetero else ():
        data[node_type].time = torch.arange(data[node_type].num_nodes)
    if not hetero:
        data.time = torch.arange(60)
    index = data[key].edge_index if hetero else data.edge_index
    times = index.amax(0)
    sizes = FixedSizeOptions({"paper": 99, "author": 99}, 99) if hetero else FixedSizeOptions(300, 300)
    loader = FixedSizeLinkLoader(
        data,
        [2, 2],
        key if hetero else None,
        edge_label_time=times,
        time_attr="time",
        batch_size=10,
        fixed_size_options=sizes,
    )
    for ids, batch in zip(loader.plan(), loader, strict=True):
        for node_type in data.node_types if hetero else (None,):
            store = batch if node_type is None else batch[node_type]
            real = store.nodes_mask
            of_tree = times[ids][store.tree[real] % len(ids)]
            assert (store.time[real] <= of_tree).all()


def test_sizes_are_measured_where_none_are_given():
    loader = FixedSizeLinkLoader(DATA, [2], batch_size=10, neg_sampling="binary")
    assert sum(int(batch.num_trimmed_edges[0]) for batch in loader) == 0
    assert repr(loader).startswith("FixedSizeLinkLoader(240 links -> 24 batches of ")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"fixed_size_options": FixedSizeOptions(31, 240)}, "up to 60 seeds, .* room for 30"),
        ({"edge_label_index": torch.tensor([[0], [60]])}, r"edge_label_index\[1\] contains 60; .* 0 ... 59"),
        ({"edge_label_index": torch.zeros(3, 4)}, "pass integers"),
        ({"edge_label": torch.ones(3)}, "for 240 edges"),
        ({"edge_label": torch.zeros(240), "neg_sampling": "binary"}, "edge_label contains 0"),
        ({"neg_sampling": "binary", "neg_sampling_ratio": 2}, "pass one of them"),
        ({"data": library(), "edge_label_index": ("paper", "likes", "paper")}, "pass one of"),
    ],
)
def test_wrong_arguments_are_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        loader_of(**choices)


def test_without_a_pair_to_draw_there_is_no_negative():
    everything = torch.cartesian_prod(torch.arange(3), torch.arange(3)).T
    data = Data(x=torch.ones(3, 1), edge_index=everything)
    with pytest.raises(ValueError, match="no negative"):
        list(loader_of(data, neg_sampling="binary", fixed_size_options=FixedSizeOptions(4, 9), batch_size=2))


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize(
    "choices",
    [
        {"neg_sampling": "binary"},
        {"neg_sampling": "triplet"},
        {"neg_sampling": "binary", "disjoint": True},
        {"neg_sampling": NegativeSampling("triplet", 3)},
        {"neg_sampling_ratio": 2.5, "num_workers": 2},
        {"neg_sampling": "binary", "time_attr": "time", "edge_label_time": True},
        {"neg_sampling": "triplet", "time_attr": "time", "edge_label_time": True},
    ],
)
def test_negatives_are_neither_seeds_nor_edges_nor_loops(choices, undirected):
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(12, (2, 50), generator=generator).unique(dim=1)
    edges = edges[:, edges[0] != edges[1]]
    edges, seeds = edges[:, ::2], edges[:, 1::2]
    edges = torch.cat([edges, edges.flip(0)], 1) if undirected else edges
    data = Data(x=torch.zeros(12, 1), edge_index=edges, time=torch.zeros(12, dtype=torch.int64))
    if "edge_label_time" in choices:
        choices = choices | {"edge_label_time": torch.ones(seeds.shape[1], dtype=torch.int64)}
    taken = set(map(tuple, torch.cat([edges, seeds], 1).T.tolist()))
    taken |= {pair[::-1] for pair in taken} if undirected else set()
    drawn = []
    sizes = FixedSizeOptions(num_nodes=200, num_edges=200)
    for batch in FixedSizeLinkLoader(data, [2], seeds, batch_size=4, fixed_size_options=sizes, **choices):
        is_negative = batch.edge_label_mask & (batch.edge_label == 0)
        drawn += map(tuple, batch.n_id[batch.edge_label_index[:, is_negative]].T.tolist())
    assert len(drawn) >= seeds.shape[1]
    assert not taken & set(drawn)
    assert all(source != destination for source, destination in drawn)


def test_links_are_numbers_and_no_mask():
    with pytest.raises(ValueError, match=r"edge_label_index is torch\.bool"):
        loader_of(edge_label_index=torch.eye(2, dtype=torch.bool))

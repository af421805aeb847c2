"""Seeds with sampled neighbors: one shape, seeds first and never lost, and the results of the whole graph."""

from itertools import islice

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

from popgeo import FixedSizeNeighborLoader, FixedSizeOptions, unpad
from popgeo.data.super_batch import split
from popgeo.ipu import Options
from tests.support.large_graphs import check_is_part_of, library, random_graph

DATA = random_graph()
SIZES = FixedSizeOptions(num_nodes=61, num_edges=240)


def loader_of(data=DATA, num_neighbors=(4, 3), **kwargs) -> FixedSizeNeighborLoader:
    kwargs.setdefault("fixed_size_options", SIZES)
    kwargs.setdefault("batch_size", 8)
    kwargs.setdefault("seed", 0)
    return FixedSizeNeighborLoader(data, list(num_neighbors), **kwargs)


def test_a_path_by_hand(native):
    path = Data(x=torch.arange(5.0)[:, None], edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
    sizes = FixedSizeOptions(num_nodes=7, num_edges=5)
    loader = FixedSizeNeighborLoader(path, [1, 1], torch.tensor([4, 1]), batch_size=2, fixed_size_options=sizes)
    (batch,) = loader
    assert batch.n_id.tolist() == [4, 1, 3, 0, 2, 0, 0]
    assert batch.x.flatten().tolist() == [4, 1, 3, 0, 2, 0, 0]
    assert batch.edge_index.tolist() == [[2, 3, 4, 5, 5], [0, 1, 2, 5, 5]]
    assert batch.e_id.tolist() == [3, 0, 2, 0, 0]
    assert batch.seeds_mask.tolist() == [True, True] + [False] * 5
    assert batch.nodes_mask.tolist() == [True] * 5 + [False] * 2


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("choices", [{}, {"replace": True}, {"disjoint": True}])
def test_every_batch_is_part_of_the_graph_and_has_one_shape(native, subgraph_type, choices):
    sizes = FixedSizeOptions(num_nodes=200, num_edges=1000)
    loader = loader_of(subgraph_type=subgraph_type, fixed_size_options=sizes, shuffle=True, **choices)
    seen = []
    for batch in loader:
        check_is_part_of(batch, DATA)
        assert (batch.num_nodes, batch.num_edges, batch.num_graphs) == (200, 1000, 2)
        seen += batch.n_id[batch.seeds_mask].tolist()
        assert int(batch.num_trimmed_nodes.sum()) == 0
    assert sorted(seen) == list(range(60))


def test_seeds_come_first_and_a_last_batch_has_fewer():
    batches = list(loader_of(input_nodes=torch.arange(20, 40), batch_size=8))
    assert [int(batch.seeds_mask.sum()) for batch in batches] == [8, 8, 4]
    assert [batch.n_id[batch.seeds_mask].tolist() for batch in batches][2] == [36, 37, 38, 39]
    assert all(batch.seeds_mask[: int(batch.seeds_mask.sum())].all() for batch in batches)
    assert len(loader_of(input_nodes=torch.arange(20, 40), batch_size=8, drop_last=True)) == 2


def test_graph_sage_with_all_neighbors_gives_what_it_gives_on_the_whole_graph(native):
    torch.manual_seed(0)
    model = GraphSAGE(3, 8, num_layers=2, out_channels=4).eval()
    x = torch.randn(60, 3)
    data = Data(x=x, edge_index=DATA.edge_index)
    expected = model(x, data.edge_index)
    for batch in FixedSizeNeighborLoader(data, [-1, -1], batch_size=7, fixed_size_options=SIZES, sort_edges=True):
        got = model(batch.x, batch.edge_index)
        torch.testing.assert_close(got[batch.seeds_mask], expected[batch.n_id[batch.seeds_mask]])


def test_trimming_removes_the_farthest_hop_first_and_never_a_seed(native):
    star = torch.tensor([[1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 2, 2]])  # 0 <- 1, 2; 1 <- 3, 4; 2 <- 5, 6
    data = Data(x=torch.arange(7.0)[:, None], edge_index=star)
    for num_nodes, hops in ((7, 3), (5, 1), (4, 0), (3, -1)):
        sizes = FixedSizeOptions(num_nodes, 6)
        (batch,) = FixedSizeNeighborLoader(data, [-1, -1], torch.tensor([0]), fixed_size_options=sizes)
        left = batch.n_id[batch.nodes_mask].tolist()
        assert left[0] == 0
        assert len([node for node in left if node > 2]) == max(0, hops)
        assert len(left) == num_nodes - 1
        assert batch.num_trimmed_nodes.tolist() == [8 - num_nodes, 0]
        assert int(batch.edges_mask.sum()) == 6 - int(batch.num_trimmed_edges.sum()) == num_nodes - 2


def test_trimming_edges_takes_the_farthest_first():
    star = torch.tensor([[1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 2, 2]])
    data = Data(x=torch.ones(7, 1), edge_index=star)
    for num_edges, near in ((5, 2), (3, 2), (2, 2), (1, 1)):
        sizes = FixedSizeOptions(8, num_edges)
        (batch,) = FixedSizeNeighborLoader(data, [-1, -1], torch.tensor([0]), fixed_size_options=sizes)
        left = batch.e_id[batch.edges_mask]
        assert len(left) == num_edges
        assert int((left < 2).sum()) == near  # edges 0 and 1 end at the seed
        assert batch.num_trimmed_edges.tolist() == [6 - num_edges, 0]


def test_no_seed_is_lost_however_small_the_batch():
    loader = loader_of(fixed_size_options=FixedSizeOptions(num_nodes=10, num_edges=4), shuffle=True)
    for batch in loader:
        assert batch.seeds_mask.tolist() == [True] * int(batch.seeds_mask.sum()) + [False] * (
            10 - int(batch.seeds_mask.sum())
        )
        assert int(batch.num_trimmed_nodes[0]) > 0
    assert sorted(i for b in loader for i in b.n_id[b.seeds_mask].tolist()) == list(range(60))
    assert "trimmed" in repr(loader)
    assert (loader.filling()["lost"] > 0.2).all()


def test_padding_is_no_seed_and_has_the_number_of_a_node_whatever_fills_its_features():
    sizes = FixedSizeOptions(61, 240, node_pad_value=99.0)
    batch = next(iter(loader_of(fixed_size_options=sizes)))
    padding = ~batch.nodes_mask
    assert (batch.x[padding] == 99).all()
    assert (batch.n_id[padding] == 0).all()
    assert not batch.seeds_mask[padding].any()


def test_a_batch_of_padding_alone_fills_up_a_shard():
    (batch,) = loader_of(input_nodes=torch.arange(3), batch_size=1, rank=3, world_size=4)
    assert not batch.nodes_mask.any()
    assert unpad(batch) == []


def test_measured_sizes_hold_999_of_1000_further_batches():
    data = random_graph(num_nodes=400, num_edges=3000, seed=3)
    hubs = torch.arange(400).repeat(3) % 7  # a few nodes that many others have as a neighbor
    data.edge_index = torch.cat([data.edge_index, torch.stack([hubs, torch.arange(1200) % 400])], 1)
    data.edge_attr = torch.zeros(data.num_edges, 1)
    loader = FixedSizeNeighborLoader(data, [3, 2], batch_size=16, shuffle=True, seed=1)
    limits = loader.fixed_size_options.limits(loader._axes)
    found = (loader.part_sampler.sample(loader.plan()[i % 25], seed) for seed in range(2000) for i in [seed])
    over = sum(any(np.array(part.sizes(loader._axes)) > limits) for part in found)
    assert over <= 2
    assert loader.size_estimate.num_batches <= 512
    assert loader.filling()["full"].min() > 0.6


def test_few_batches_are_measured_where_nearly_all_have_every_node():
    data = random_graph(num_nodes=80, num_edges=900, seed=3)
    loader = FixedSizeNeighborLoader(data, [8, 8], batch_size=16, shuffle=True, seed=1)
    assert loader.size_estimate.num_batches <= 512
    assert loader.fixed_size_options.num_nodes == 81


def test_an_epoch_is_repeated_by_its_seed_and_differs_from_the_next():
    def ids(loader):
        return [batch.n_id.tolist() for batch in loader]

    loader = loader_of(shuffle=True, seed=5)
    first, second = ids(loader), ids(loader)
    assert first != second
    again = loader_of(shuffle=True, seed=5)
    assert ids(again) == first
    again.set_epoch(1)
    assert ids(again) == second
    assert ids(loader_of(shuffle=True, seed=6)) != first


def test_neighbors_are_drawn_anew_in_every_epoch_even_without_shuffle():
    loader = loader_of(num_neighbors=(2,))
    assert [b.n_id.tolist() for b in loader] != [b.n_id.tolist() for b in loader]


def test_an_epoch_goes_on_where_it_stopped():
    loader = loader_of(shuffle=True, seed=2)
    whole = [batch.n_id.tolist() for batch in loader_of(shuffle=True, seed=2)]
    list(islice(iter(loader), 3))
    other = loader_of(shuffle=True, seed=9)
    other.load_state_dict(loader.state_dict())
    assert [batch.n_id.tolist() for batch in other] == whole[3:]
    with pytest.raises(ValueError, match="of 60 seeds, the loader has 5"):
        loader_of(input_nodes=torch.arange(5)).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("choices", [{"background": True}, {"num_buffers": 2}, {"num_workers": 1}])
def test_threads_workers_and_reused_memory_change_nothing(choices):
    plain = [batch.x.clone() for batch in loader_of(shuffle=True)]
    other = [batch.x.clone() for batch in loader_of(shuffle=True, **choices)]
    assert len(plain) == len(other) == 8
    assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


def test_shards_are_disjoint_complete_and_of_equal_length():
    shards = [list(loader_of(shuffle=True, rank=rank, world_size=3)) for rank in range(3)]
    assert {len(shard) for shard in shards} == {3}
    assert sorted(i for s in shards for b in s for i in b.n_id[b.seeds_mask].tolist()) == list(range(60))


def test_several_batches_make_one_item():
    options = Options(device_iterations=2)
    single, joined = list(loader_of()), list(loader_of(options=options))
    assert len(joined) == 4
    assert joined[0].x.shape == (2 * 61, 3)
    parts = [part for item in joined for part in split(item)]
    assert all(torch.equal(a.edge_index, b.edge_index) for a, b in zip(single, parts, strict=True))


def test_a_batch_comes_apart_into_its_subgraph():
    batch = next(iter(loader_of()))
    (part,) = unpad(batch)
    assert part.num_nodes == int(batch.nodes_mask.sum())
    assert torch.equal(part.edge_index, batch.edge_index[:, batch.edges_mask])


def test_sorted_edges_have_row_pointers(native):
    for subgraph_type in ("directional", "bidirectional"):
        for batch in loader_of(
            sort_edges=True, subgraph_type=subgraph_type, fixed_size_options=FixedSizeOptions(61, 400)
        ):
            check_is_part_of(batch, DATA)
            destinations = batch.edge_index[1]
            assert (destinations.diff() >= 0).all()
            assert batch.rowptr.diff().tolist() == destinations.bincount(minlength=61).tolist()


def test_features_may_lie_on_disk_in_half_precision(tmp_path):
    path = tmp_path / "features.npy"
    np.save(path, DATA.x.numpy().astype(np.float16))
    on_disk = np.load(path, mmap_mode="r")
    data = Data(x=on_disk, edge_index=DATA.edge_index, y=DATA.y)
    batch = next(iter(loader_of(data)))
    real = batch.nodes_mask
    assert batch.x.dtype == torch.float16
    assert torch.equal(batch.x[real].float(), DATA.x[batch.n_id[real]])
    loader = loader_of(data)
    (x,) = (a.tensor for a in loader.source.whole.attributes if a.name == "x")
    assert x.data_ptr() == on_disk.ctypes.data  # nothing was copied


def test_temporal_sampling_never_looks_ahead():
    data = Data(x=torch.ones(60, 1), edge_index=DATA.edge_index, time=torch.arange(60))
    times = torch.arange(60)
    loader = FixedSizeNeighborLoader(
        data, [3, 3], None, times, time_attr="time", batch_size=5, fixed_size_options=FixedSizeOptions(100, 100)
    )
    for batch in loader:
        real = batch.nodes_mask
        seed_of_node = batch.n_id[batch.tree[real]]
        assert (batch.time[real] <= seed_of_node).all()


def test_edges_are_drawn_by_their_weight():
    data = random_graph()
    data.edge_attr = (torch.arange(data.num_edges) % 2 == 0).float()
    for batch in loader_of(data, weight_attr="edge_attr"):
        assert (batch.edge_attr[batch.edges_mask] == 1).all()


def test_heterogeneous_graphs(native):
    data = library()
    sizes = FixedSizeOptions({"paper": 31, "author": 21}, dict.fromkeys(data.edge_types, 90))
    loader = FixedSizeNeighborLoader(
        data, [3, 2], ("paper", torch.arange(12)), batch_size=5, fixed_size_options=sizes, sort_edges=True
    )
    for batch in loader:
        for node_type in data.node_types:
            real = batch[node_type].nodes_mask
            assert torch.equal(batch[node_type].x[real], data[node_type].x[batch[node_type].n_id[real]])
        for edge_type in data.edge_types:
            store, real = batch[edge_type], batch[edge_type].edges_mask
            numbers = [batch[end].n_id for end in (edge_type[0], edge_type[2])]
            ends = torch.stack([n[row[real]] for n, row in zip(numbers, store.edge_index, strict=True)])
            assert torch.equal(ends, data[edge_type].edge_index[:, store.e_id[real]])
        assert not batch["author"].seeds_mask.any()
    assert [int(b["paper"].seeds_mask.sum()) for b in loader] == [5, 5, 2]
    measured = FixedSizeNeighborLoader(data, {t: [2] for t in data.edge_types}, "author", batch_size=4)
    assert len(list(measured)) == 5


def test_an_edge_type_without_edges_and_a_node_type_that_is_never_reached():
    data = library()
    data["paper", "cites", "paper"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    data["venue"].x = torch.ones(3, 1)
    loader = FixedSizeNeighborLoader(data, [2, 2], "author", batch_size=4)
    batch = next(iter(loader))
    assert not batch["venue"].nodes_mask.any()
    assert batch["paper", "cites", "paper"].edge_index.shape == (2, 0)


def test_isolated_seeds_and_seeds_twice():
    data = Data(x=torch.arange(6.0)[:, None], edge_index=torch.tensor([[1], [0]]))
    loader = FixedSizeNeighborLoader(
        data, [2], torch.tensor([5, 0, 5]), batch_size=3, fixed_size_options=FixedSizeOptions(6, 3)
    )
    (batch,) = loader
    assert batch.n_id[batch.nodes_mask].tolist() == [5, 0, 5, 1]
    assert batch.edge_index[:, 0].tolist() == [3, 1]
    assert batch.seeds_mask.sum() == 3


@pytest.mark.filterwarnings("ignore:.*pyg-lib:UserWarning")  # that torch_sparse is the peer is meant
def test_with_all_neighbors_batches_hold_what_those_of_pyg_hold():
    pytest.importorskip("torch_sparse", reason="PyG samples by an extension: torch_sparse is not installed")
    theirs = NeighborLoader(DATA, [-1, -1], input_nodes=torch.arange(0, 60, 2), batch_size=6)
    ours = loader_of(num_neighbors=(-1, -1), input_nodes=torch.arange(0, 60, 2), batch_size=6)
    for own, other in zip(ours, theirs, strict=True):
        nodes, edges = own.nodes_mask, own.edges_mask
        assert own.n_id[:6].tolist() == other.n_id[:6].tolist()
        assert sorted(own.n_id[nodes].tolist()) == sorted(other.n_id.tolist())
        assert sorted(own.e_id[edges].tolist()) == sorted(other.e_id.tolist())
        ends = [
            n_id[index].T.tolist()
            for n_id, index in ((own.n_id, own.edge_index[:, edges]), (other.n_id, other.edge_index))
        ]
        assert sorted(ends[0]) == sorted(ends[1])


def test_a_graph_without_edges():
    data = Data(x=torch.ones(4, 1), edge_index=torch.empty(2, 0, dtype=torch.int64))
    assert [int(b.nodes_mask.sum()) for b in FixedSizeNeighborLoader(data, [3], batch_size=2)] == [2, 2]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"fixed_size_options": FixedSizeOptions(8, 9)}, "has up to 8 seeds, .* room for 7 .* Raise it to 9"),
        ({"input_nodes": torch.tensor([60])}, "input_nodes contains 60; indices must be in 0 ... 59"),
        ({"input_nodes": torch.tensor([-1])}, "input_nodes contains -1"),
        ({"input_nodes": torch.ones(5, dtype=torch.bool)}, r"mask input_nodes has shape \(5,\)"),
        ({"input_nodes": torch.ones(2)}, "pass numbers or a mask"),
        ({"over_size_strategy": "Skip"}, "Skip cannot leave a batch of seeds out"),
        ({"transform": len}, "transform is not taken"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"num_neighbors": "10"}, "each is 0 or more"),
        ({"collate_fn": len}, "takes no collate_fn"),
        ({"sampler": [1], "shuffle": True}, "can decide the order"),
        ({"time_attr": "when"}, r"No attribute 'when' has a row for each node, or for each edge; .* 'x of nodes'"),
        ({"input_time": torch.ones(2), "time_attr": "y"}, "for 60 seeds"),
    ],
)
def test_wrong_arguments_are_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        loader_of(**choices)


def test_what_does_not_fit_and_may_not_be_trimmed_is_an_error():
    sizes = FixedSizeOptions(12, 200)
    with pytest.raises(ValueError, match=r"Raise FixedSizeOptions\.num_nodes to"):
        list(loader_of(fixed_size_options=sizes, over_size_strategy="Error"))
    with pytest.raises(ValueError, match=r"Raise FixedSizeOptions\.num_edges to"):
        list(loader_of(fixed_size_options=FixedSizeOptions(61, 3), over_size_strategy="TrimNodes"))


def test_wrong_graphs_are_refused():
    with pytest.raises(ValueError, match="pass one Data or HeteroData"):
        loader_of([DATA])
    with pytest.raises(ValueError, match="no edge_index"):
        loader_of(Data(x=torch.ones(3, 1)))
    with pytest.raises(ValueError, match="edge_index"):
        loader_of(Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [7]])))
    taken = DATA.clone()
    taken.seeds_mask = torch.ones(60)
    with pytest.raises(ValueError, match=r"attributes \['seeds_mask'\], which batches carry"):
        loader_of(taken)
    counting = DATA.clone()
    counting.pos_edge_index = torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match=r"exclude_keys=\['pos_edge_index'\]"):
        loader_of(counting)
    assert len(loader_of(counting, exclude_keys=["pos_edge_index"])) == 8

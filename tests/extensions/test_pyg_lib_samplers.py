"""pyg_lib's samplers under their own names: results by hand, and PyG's loaders on them."""

import gc
import weakref

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ClusterData, LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import Node2Vec

from popgeo.native import library

#  A ring of 6 nodes; node i has the neighbors i - 1 and i + 1.
ROWPTR = torch.arange(0, 13, 2)
COL = torch.tensor([5, 1, 0, 2, 1, 3, 2, 4, 3, 5, 4, 0])
SEED = torch.tensor([2, 3])
BUYS, SOLD = ("user", "buys", "item"), ("item", "sold", "user")


def lists(parts) -> list:
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in parts]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("csc", [False, True])
def test_two_hops_around_two_seeds_are_those_by_hand(native, pyg_lib, dtype, csc):
    graph = (ROWPTR.to(dtype), COL.to(dtype), SEED.to(dtype))
    sample = pyg_lib.sampler.neighbor_sample(*graph, [-1, -1], csc=csc)
    near, far = [0, 0, 1, 1, 2, 2, 3, 3], [2, 1, 0, 3, 4, 0, 1, 5]
    ends = [far, near] if csc else [near, far]
    assert lists(sample) == [*ends, [2, 3, 1, 4, 0, 5], [4, 5, 6, 7, 2, 3, 8, 9], [2, 2, 2], [4, 4]]
    assert all(part.dtype == dtype for part in sample[:4])
    by_operator = torch.ops.pyg.neighbor_sample(*graph, [-1, -1], None, None, None, None, csc)
    assert lists(by_operator) == lists(sample)
    assert pyg_lib.sampler.neighbor_sample(*graph, [-1], return_edge_id=False)[3] is None


def test_trees_of_seeds_are_in_front_of_the_nodes_and_times_limit_them(native, pyg_lib):
    sample = pyg_lib.sampler.neighbor_sample(ROWPTR, COL, SEED, [2], disjoint=True)
    assert sample[2].tolist() == [[0, 2], [1, 3], [0, 1], [0, 3], [1, 2], [1, 4]]
    ascending = COL.view(-1, 2).sort(1).values.flatten()
    timed = pyg_lib.sampler.neighbor_sample(ROWPTR, ascending, SEED, [2, 2], node_time=torch.arange(6), disjoint=True)
    assert lists(timed)[:4] == [
        [0, 1, 2, 2, 3, 3],
        [2, 3, 4, 0, 5, 1],
        [[0, 2], [1, 3], [0, 1], [1, 2], [0, 0], [1, 1]],
        [4, 6, 2, 3, 4, 5],
    ]
    times = {"edge_time": torch.arange(12), "seed_time": torch.tensor([5, 6])}
    edges = pyg_lib.sampler.neighbor_sample(ROWPTR, COL, SEED, [2], disjoint=True, **times)[3]
    assert edges.tolist() == [4, 5, 6]
    last = pyg_lib.sampler.neighbor_sample(ROWPTR, COL, SEED, [1], disjoint=True, temporal_strategy="last", **times)
    assert last[3].tolist() == [5, 6]
    with pytest.raises(ValueError, match="Pass disjoint=True"):
        pyg_lib.sampler.neighbor_sample(ROWPTR, COL, SEED, [2], **times)


def test_edges_of_weight_zero_are_never_drawn(native, pyg_lib):
    weight = torch.tensor([1.0, 0.0]).repeat(6)
    sample = pyg_lib.sampler.neighbor_sample(ROWPTR, COL, torch.tensor([0, 1]), [1], edge_weight=weight)
    assert lists(sample)[:4] == [[0, 1], [2, 0], [0, 1, 5], [0, 2]]


def test_a_heterogeneous_sample_has_every_type_also_seeds_without_edges(native, pyg_lib):
    rowptr = {BUYS: torch.tensor([0, 2, 3]), SOLD: torch.tensor([0, 0, 1, 2, 2])}
    col = {BUYS: torch.tensor([3, 1, 2]), SOLD: torch.tensor([0, 1])}
    seeds = {"user": torch.tensor([0]), "shop": torch.tensor([7, 5])}
    row, column, node, edge, num_nodes, num_edges = pyg_lib.sampler.hetero_neighbor_sample(
        rowptr, col, seeds, {BUYS: [2, 1], SOLD: [2, 1]}
    )
    assert {key: part.tolist() for key, part in node.items()} == {"user": [0], "item": [3, 1], "shop": [7, 5]}
    assert (row[BUYS].tolist(), column[BUYS].tolist(), edge[BUYS].tolist()) == ([0, 0], [0, 1], [0, 1])
    assert (row[SOLD].tolist(), column[SOLD].tolist(), edge[SOLD].tolist()) == ([1], [0], [0])
    assert num_nodes == {"user": [1, 0, 0], "item": [0, 2, 0], "shop": [2, 0, 0]}
    assert num_edges == {BUYS: [2, 0], SOLD: [0, 1]}
    assert row.keys() == {BUYS, SOLD}


def test_a_subgraph_has_the_edges_between_its_nodes(native, pyg_lib):
    rowptr, col, edge = pyg_lib.sampler.subgraph(ROWPTR, COL, torch.tensor([3, 0, 2, 5]))
    assert (rowptr.tolist(), col.tolist(), edge.tolist()) == ([0, 1, 2, 3, 4], [2, 3, 0, 1], [6, 0, 5, 11])
    undirected = pyg_lib.sampler.neighbor_sample(ROWPTR, COL, torch.tensor([3]), [1], directed=False)
    assert undirected[5] == [2]  # both directions of the edge


def test_samples_follow_from_torchs_seed_for_any_number_of_threads_and_without_a_compiler(pyg_lib):
    edges = torch.randint(500, (2, 9000), generator=torch.Generator().manual_seed(0))
    data = Data(edge_index=edges, num_nodes=500)

    def batches(threads: int = 1) -> list:
        torch.set_num_threads(threads)
        torch.manual_seed(3)
        walks = Node2Vec(edges, 2, 6, 4, p=0.5, q=2.0, num_nodes=500).pos_sample(torch.arange(400))
        return [
            walks.tolist(),
            *((b.n_id.tolist(), b.e_id.tolist()) for b in NeighborLoader(data, [5, 3], batch_size=250)),
        ]

    first = batches()
    try:
        assert batches(2) == first
    finally:
        torch.set_num_threads(1)
    with library.without_native():
        assert batches() == first
    torch.manual_seed(4)
    other = next(iter(NeighborLoader(data, [5, 3], batch_size=250)))
    assert other.e_id.tolist() != first[1][1]


def test_a_graph_is_checked_again_after_a_change_and_is_not_kept_alive(pyg_lib):
    rowptr, col = ROWPTR.clone(), COL.clone()
    pyg_lib.sampler.neighbor_sample(rowptr, col, SEED, [2])
    col[3] = 99
    with pytest.raises(ValueError, match="99"):
        pyg_lib.sampler.neighbor_sample(rowptr, col, SEED, [2])
    alive = weakref.ref(rowptr)
    del rowptr, col
    gc.collect()
    assert alive() is None


def test_loaders_of_pyg_keep_edges_weights_and_times(pyg_lib):
    data = Data(x=torch.arange(6.0), edge_index=torch.stack([COL, torch.arange(6).repeat_interleave(2)]))
    data.time, data.weight = torch.arange(6), torch.tensor([1.0, 0.0]).repeat(6)
    for choices in ({"disjoint": True}, {"replace": True}, {"weight_attr": "weight"}, {"time_attr": "time"}):
        for batch in NeighborLoader(data, [2, 2], batch_size=3, **choices):
            assert batch.x.tolist() == batch.n_id.tolist()
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
            if "weight_attr" in choices:
                assert (data.weight[batch.e_id] == 1).all()
            if "time_attr" in choices:
                assert (batch.time <= batch.time[: batch.batch_size][batch.batch]).all()
    links = LinkNeighborLoader(data, [-1], batch_size=4, neg_sampling="binary", subgraph_type="bidirectional")
    assert all(batch.edge_label.tolist() == [1.0] * 4 + [0.0] * 4 for batch in links)
    assert ClusterData(data, num_parts=2).partition.partptr.tolist() == [0, 3, 6]


def test_data_without_edges_gives_seeds_only(pyg_lib):
    batch = next(iter(NeighborLoader(Data(num_nodes=5), [3], batch_size=2)))
    assert batch.n_id.tolist() == [0, 1]
    data = HeteroData(paper={"num_nodes": 5})
    batch = next(iter(NeighborLoader(data, [], batch_size=2, input_nodes="paper")))
    assert batch["paper"].n_id.tolist() == [0, 1]

"""Clusters of a large graph: as many as fit share a batch, with all edges between their nodes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData, ClusterLoader

from popgeo import FixedSizeClusterLoader, FixedSizeOptions
from popgeo.data import OverSizeStrategy
from popgeo.loader.large.pack_clusters import ClusterSizes, pack_clusters
from popgeo.sampling import partition
from tests.support.large_graphs import check_is_part_of, library, random_graph

DATA = random_graph(num_nodes=90, num_edges=400)
PARTS = torch.arange(90) % 9


def loader_of(data=DATA, **kwargs) -> FixedSizeClusterLoader:
    if not isinstance(data, ClusterData):
        kwargs.setdefault("parts", PARTS)
    kwargs.setdefault("batch_size", 3)
    kwargs.setdefault("seed", 0)
    return FixedSizeClusterLoader(data, **kwargs)


def induced(nodes: torch.Tensor, data: Data = DATA) -> list[int]:
    """Return the numbers of all edges with both ends among some nodes, by the plain definition."""
    inside = set(nodes.tolist())
    return [i for i, (a, b) in enumerate(data.edge_index.T.tolist()) if a in inside and b in inside]


def test_a_batch_is_the_induced_subgraph_of_its_clusters(native):
    loader = loader_of()
    seen = []
    for batch, clusters in zip(loader, loader.plan(), strict=True):
        check_is_part_of(batch, DATA)
        nodes = batch.n_id[batch.nodes_mask]
        assert sorted(nodes.tolist()) == torch.isin(PARTS, torch.from_numpy(clusters)).nonzero().flatten().tolist()
        assert sorted(batch.e_id[batch.edges_mask].tolist()) == induced(nodes)
        seen += nodes.tolist()
    assert sorted(seen) == list(range(90))


def test_the_sizes_of_clusters_together_count_the_edges_between_them():
    sizes = ClusterSizes.count(DATA.edge_index, PARTS, 9)
    for clusters in ([0], [1, 4], [8, 2, 3, 5]):
        nodes = torch.isin(PARTS, torch.tensor(clusters)).nonzero().flatten()
        assert sizes.of(np.array(clusters)) == (len(nodes), len(induced(nodes)))


@given(st.integers(0, 10**6), st.integers(12, 60), st.integers(20, 200))
@settings(max_examples=30, deadline=None)
def test_no_batch_exceeds_its_budget_and_each_cluster_is_used_once(seed, nodes, edges):
    sizes = ClusterSizes.count(DATA.edge_index, PARTS, 9)
    order = np.random.default_rng(seed).permutation(9)
    packs = pack_clusters(order, sizes, (nodes, edges), OverSizeStrategy.Error)
    assert sorted(packs.indices.tolist()) == list(range(9))
    assert all(np.less_equal(sizes.of(pack), (nodes, edges)).all() for pack in packs)


def test_how_many_clusters_share_a_batch_depends_on_the_budget():
    wide, narrow = (loader_of(fixed_size_options=FixedSizeOptions(n, 400)) for n in (91, 31))
    assert (len(wide), len(narrow)) == (1, 3)
    assert len(loader_of(fixed_size_options=FixedSizeOptions(91, 60))) > 2  # edges run out first


def test_clusters_are_shuffled_in_every_epoch_and_repeated_by_their_seed():
    def epochs(loader):
        return [[sorted(b.n_id[b.nodes_mask].tolist()) for b in loader] for _ in range(2)]

    first, second = epochs(loader_of(seed=1))
    assert first != second
    assert epochs(loader_of(seed=1)) == [first, second]
    still = epochs(loader_of(shuffle=False))
    assert still[0] == still[1]


def test_a_cluster_that_fits_no_batch_is_refused_skipped_or_trimmed():
    parts = (torch.arange(90) >= 50).long() + (torch.arange(90) >= 60)  # 50, 10 and 30 nodes
    sizes = FixedSizeOptions(41, 400)
    with pytest.raises(ValueError, match=r"Cluster 0 has 50 nodes .* 1 clusters do not fit. Raise num_nodes or num_e"):
        len(loader_of(parts=parts, fixed_size_options=sizes, over_size_strategy="Error"))
    skipping = loader_of(parts=parts, fixed_size_options=sizes, over_size_strategy="Skip")
    assert (skipping.num_skipped, sum(int(b.nodes_mask.sum()) for b in skipping)) == (1, 40)
    trimming = list(loader_of(parts=parts, fixed_size_options=sizes))
    assert sorted(int(b.num_trimmed_nodes.sum()) for b in trimming) == [0, 10]
    for batch in trimming:
        nodes = batch.n_id[batch.nodes_mask]
        assert sorted(batch.e_id[batch.edges_mask].tolist()) == induced(nodes)


def test_trimmed_edges_go_in_both_directions_together():
    (batch,) = loader_of(parts=torch.zeros(90, dtype=torch.int64), fixed_size_options=FixedSizeOptions(91, 101))
    left = batch.n_id[batch.edge_index[:, batch.edges_mask]]
    pairs = {(a, b) for a, b in left.T.tolist()}
    assert 95 <= left.shape[1] <= 101
    assert int(batch.num_trimmed_edges[0]) == 400 - left.shape[1]
    assert all((b, a) in pairs for a, b in pairs)


def test_clusters_are_made_of_a_graph_itself():
    loader = loader_of(parts=None, num_parts=6, batch_size=2)
    assert loader.part_sampler.num_items == 6
    assert sorted(i for b in loader for i in b.n_id[b.nodes_mask].tolist()) == list(range(90))
    assert repr(loader).startswith("FixedSizeClusterLoader(6 clusters -> ")


@pytest.mark.parametrize("sparse_format", ["csr", "csc"])
def test_batches_of_pygs_cluster_data_equal_those_of_its_own_loader(monkeypatch, sparse_format):
    # PyG itself divides by an extension; everything after that is its own.
    monkeypatch.setattr(ClusterData, "_metis", lambda self, edges, n: partition(edges, 6, num_nodes=n))
    clusters = ClusterData(DATA, 6, sparse_format=sparse_format, log=False)
    loader = loader_of(clusters, shuffle=False, fixed_size_options=FixedSizeOptions(40, 200))
    for batch, ids in zip(loader, loader.plan(), strict=True):
        check_is_part_of(batch, DATA)
        theirs = ClusterLoader(clusters, batch_size=len(ids)).collate_fn(ids.tolist())
        real = batch.nodes_mask
        assert torch.equal(batch.x[real], theirs.x)
        edges = batch.edges_mask
        ours = batch.x[batch.edge_index[:, edges], 0], batch.edge_attr[edges].flatten()
        others = theirs.x[theirs.edge_index, 0], theirs.edge_attr.flatten()
        columns = [sorted(zip(*ends.tolist(), attr.tolist(), strict=True)) for ends, attr in (ours, others)]
        assert columns[0] == columns[1]


def test_resuming_and_shards():
    shards = [list(loader_of(rank=rank, world_size=2)) for rank in range(2)]
    assert len(shards[0]) == len(shards[1])
    assert sorted(i for s in shards for b in s for i in b.n_id[b.nodes_mask].tolist()) == list(range(90))
    loader, other = loader_of(), loader_of()
    next(iter(loader))
    other.load_state_dict(loader.state_dict())
    assert len(list(other)) == len(loader_of()) - 1


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"num_parts": 3}, "either num_parts"),
        ({"parts": None}, "either num_parts"),
        ({"parts": torch.zeros(5, dtype=torch.int64)}, "pass 90 numbers of 0 or more"),
        ({"parts": torch.zeros(90)}, "pass 90 numbers of 0 or more"),
        ({"parts": torch.full((90,), -1)}, "pass 90 numbers of 0 or more"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"data": library()}, "For HeteroData use FixedSizeNeighborLoader"),
    ],
)
def test_wrong_arguments_are_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        loader_of(**choices)

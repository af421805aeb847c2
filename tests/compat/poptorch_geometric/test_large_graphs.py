"""Loaders of clusters and neighbors of one large graph, without extensions of PyG."""

import copy
import pickle

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ClusterData, NeighborLoader
from torch_geometric.nn import pool

from popgeo.compat import poptorch
from popgeo.compat.poptorch_geometric import FixedSizeOptions, OverSizeStrategy, cluster_loader, pyg_cluster_loader
from popgeo.compat.poptorch_geometric.neighbor_loader import FixedSizeNeighborLoader, PyGFixedSizeNeighborLoader


@pytest.fixture(scope="module")
def ring():
    """Return a ring of 24 nodes with edges in both directions. Node i has i, an edge has the sum of its ends."""
    ends = torch.stack([torch.arange(24), (torch.arange(24) + 1) % 24])
    index = torch.cat([ends, ends.flip(0)], dim=1)
    return Data(x=torch.arange(24.0)[:, None], edge_index=index, edge_attr=index.sum(0).float())


@pytest.fixture(scope="module")
def clusters(ring):
    return ClusterData(ring, num_parts=6, log=False)


def check_edges(batch):
    """Check that each real edge has the sum of its ends."""
    ends = batch.x[batch.edge_index[:, batch.edges_mask]].squeeze(-1)
    assert torch.equal(ends.sum(0), batch.edge_attr[batch.edges_mask])


@pytest.mark.parametrize("flavour", [cluster_loader, pyg_cluster_loader])
def test_clusters_keep_the_edges_inside_and_between_them(flavour, clusters):
    loader = flavour.FixedSizeClusterLoader(clusters, FixedSizeOptions(num_nodes=20, num_edges=40), batch_size=3)
    batches = list(loader)
    assert {tuple(batch.edge_index.shape) for batch in batches} == {(2, 40)}
    seen = torch.cat([batch.x[batch.nodes_mask].flatten() for batch in batches])
    assert sorted(seen.tolist()) == list(range(24))
    for batch in batches:
        check_edges(batch)


def test_clusters_of_several_batches_are_one_item_and_may_be_shuffled(clusters):
    options = poptorch.Options().deviceIterations(2)
    loader = cluster_loader.FixedSizeClusterLoader(
        clusters, FixedSizeOptions(num_nodes=20, num_edges=40), batch_size=3, options=options, shuffle=True
    )
    (item,) = loader
    assert item.x.shape == (40, 1)
    assert item.x[item.nodes_mask].sum() == sum(range(24))


def test_what_clusters_do_not_take_is_refused(clusters):
    with pytest.raises(
        AssertionError, match="must be 2 when using the FixedSizeClusterLoader, currently it is set to 3"
    ):
        pyg_cluster_loader.FixedSizeClusterLoader(clusters, FixedSizeOptions(9, 9, 3))
    with pytest.raises(AssertionError, match=r"does not support the following arguments: \['exclude_keys'\]"):
        pyg_cluster_loader.FixedSizeClusterLoader(clusters, FixedSizeOptions(9, 9), exclude_keys=["x"])


def test_seeds_come_first_and_survive_trimming(ring):
    options = FixedSizeOptions(num_nodes=7, num_edges=8)
    loader = FixedSizeNeighborLoader(ring, [-1, -1], batch_size=4, fixed_size_options=options)
    batches = list(loader)
    assert len(loader) == 6
    for number, batch in enumerate(batches):
        seeds = list(range(4 * number, 4 * number + 4))
        assert batch.x[:4].flatten().tolist() == seeds
        assert (batch.input_id.tolist(), batch.batch_size) == (seeds, 4)
        assert torch.equal(batch.n_id[batch.nodes_mask], batch.x[batch.nodes_mask].flatten().long())
        again = pickle.loads(pickle.dumps(batch))  # as from worker processes
        assert (again.batch_size, copy.copy(batch).batch_size, batch.num_graphs) == (4, 4, 2)
        assert "seeds_to_keep" not in batch
        check_edges(batch)
    with pytest.raises(RuntimeError, match="don't allocate enough space"):
        next(
            iter(
                FixedSizeNeighborLoader(
                    ring, [-1, -1], batch_size=4, fixed_size_options=options, over_size_strategy=OverSizeStrategy.Error
                )
            )
        )


def test_a_sample_and_its_padded_form(ring):
    loader = PyGFixedSizeNeighborLoader(ring, [2], batch_size=2, fixed_size_options=FixedSizeOptions(8, 6))
    sample = loader.nativeCollate([[3, 9]])
    assert sorted(sample.n_id.tolist()) == [2, 3, 4, 8, 9, 10]
    batch = loader.fixedSizeCollate(sample)
    assert "nodes_mask" not in batch  # only the loader over PopTorch's DataLoader has masks by default
    assert batch.n_id[:6].tolist() == sample.n_id.tolist()
    assert batch.n_id[6:].tolist() == [0, 0]
    assert batch.edge_index[:, 4:].tolist() == [[6, 6], [6, 6]]
    assert "seeds_to_keep" not in sample


def test_sizes_of_samples_are_measured_and_torchs_seed_draws_them(ring):
    loader = FixedSizeNeighborLoader(ring, [1, 1], batch_size=4, shuffle=True)
    assert 5 <= loader.fixed_size_options.num_nodes <= 13

    def drawn(seed):
        torch.manual_seed(seed)
        return [batch.n_id.tolist() for batch in loader]

    assert drawn(0) == drawn(0) != drawn(1)


def test_seeds_of_one_type_of_several():
    data = HeteroData(a={"x": torch.arange(5.0)[:, None]}, b={"x": torch.arange(10.0, 14.0)[:, None]})
    data["b", "to", "a"].edge_index = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 4]])
    data["a", "to", "b"].edge_index = torch.tensor([[2, 3], [0, 1]])
    loader = FixedSizeNeighborLoader(data, [2, 2], input_nodes="a", batch_size=2)
    batch = next(iter(loader))
    assert batch["a"].x[:2].flatten().tolist() == [0, 1]
    assert batch["a"].batch_size == 2
    assert sorted(batch["b"].n_id[batch["b"].nodes_mask].tolist()) == [0, 1, 2]
    index = batch["b", "to", "a"].edge_index[:, batch["b", "to", "a"].edges_mask]
    edges = zip(batch["b"].x[index[0]].flatten().tolist(), batch["a"].x[index[1]].flatten().tolist(), strict=True)
    assert set(edges) == {(10, 0), (11, 0), (12, 1)}


def test_what_samples_do_not_take_is_refused(ring):
    with pytest.raises(ValueError, match="neighbor_sampler is not supported"):
        PyGFixedSizeNeighborLoader(ring, [1], neighbor_sampler=object())


@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without:UserWarning")
def test_pygs_own_loader_of_neighbors_samples_too(ring):
    loader = NeighborLoader(ring, [-1], batch_size=3, input_nodes=torch.tensor([0, 6, 12]))
    (sample,) = loader
    assert sample.n_id[:3].tolist() == [0, 6, 12]
    assert sorted(sample.n_id.tolist()) == [0, 1, 5, 6, 7, 11, 12, 13, 23]
    assert torch.equal(sample.x.flatten().long(), sample.n_id)
    assert FixedSizeOptions.from_loader(loader).num_nodes == 10


def test_pygs_own_searches_find_neighbors_and_leave_absent_ones_out():
    x, batch = torch.tensor([[0.0], [1.0], [3.0], [9.0]]), torch.tensor([0, 0, 0, 1])
    assert pool.knn_graph(x, 2, batch).tolist() == [[1, 2, 0, 2, 1, 0], [0, 0, 1, 1, 2, 2]]
    assert pool.radius_graph(x, 1.5, batch).tolist() == [[1, 0], [0, 1]]
    assert pool.nearest(torch.tensor([[0.8]]), x).tolist() == [1]

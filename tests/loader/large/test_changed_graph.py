"""A large graph that changes after a loader has read it: batches contain the change, or the next epoch raises."""

import copy
import pickle

import pytest
import torch
from torch_geometric.data import Data, HeteroData, TemporalData
from torch_geometric.loader import ClusterData

from popgeo import FixedSizeClusterLoader, FixedSizeLinkLoader, FixedSizeNeighborLoader
from popgeo.loader import FixedSizeEventLoader

_PATH = torch.stack([torch.arange(11), torch.arange(11) + 1])


def graph() -> Data:
    weight = torch.ones(22)[::2]  # not contiguous
    return Data(x=torch.zeros(12, 2), y=torch.zeros(12), edge_index=_PATH.clone(), weight=weight, scale=0.5)


def types() -> HeteroData:
    data = HeteroData()
    data["a"].x, data["a"].y, data["a", "to", "a"].edge_index = torch.zeros(12, 2), torch.zeros(12), _PATH.clone()
    return data


def events() -> TemporalData:
    ends = torch.arange(12) % 3
    return TemporalData(src=ends, dst=ends + 3, t=torch.arange(12), x=torch.zeros(12, 2), y=torch.zeros(12))


def clusters(data):
    return FixedSizeClusterLoader(data, parts=torch.arange(12) // 3)


LOADERS = {
    "neighbors": (graph, lambda data: FixedSizeNeighborLoader(data, [2], batch_size=4)),
    "links": (graph, lambda data: FixedSizeLinkLoader(data, [2], neg_sampling="binary", batch_size=4)),
    "clusters": (graph, clusters),
    "types": (types, lambda data: FixedSizeNeighborLoader(data, [2], input_nodes="a", batch_size=4)),
    "events": (events, lambda data: FixedSizeEventLoader(data, batch_size=4)),
}


def first_store(data):
    return next(store for store in data.stores if "x" in store)


def with_edges(data):
    return next((store for store in data.stores if "edge_index" in store), None)


def replace_labels(data):
    first_store(data).y = torch.ones(12)


def replace_features(data):
    first_store(data).x = first_store(data).x + 1


def edit_structure(data):
    edges = with_edges(data)
    (data.t if edges is None else edges.edge_index).add_(0)


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("change", [replace_labels, replace_features, edit_structure])
def test_a_change_that_batches_would_not_contain_is_refused(kind, change):
    make, load = LOADERS[kind]
    loader = load(data := make())
    next(iter(loader))
    change(data)
    with pytest.raises(ValueError, match=r"have changed since the loader read them: '(y|x|edge_index|t)'.*Make the"):
        next(iter(loader))
    next(iter(load(data)))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copied_loader_checks_its_own_graph(copied):
    loader = copied(FixedSizeNeighborLoader(graph(), [2]))
    next(iter(loader))
    edit_structure(loader.data)
    with pytest.raises(ValueError, match="'edge_index' was replaced or edited"):
        next(iter(loader))


@pytest.mark.parametrize("kind", LOADERS)
def test_batches_contain_features_that_are_edited_in_place(kind):
    make, load = LOADERS[kind]
    loader = load(data := make())
    list(loader)
    first_store(data).x.fill_(7)
    for batch in loader:
        store = next(one for one in batch.stores if "x" in one)
        mask = store.get("nodes_mask", store.get("events_mask"))
        assert (store.x[mask] == 7).all()


@pytest.mark.parametrize("kind", LOADERS)
def test_values_that_are_removed_added_or_left_out_change_no_batch(kind):
    make, load = LOADERS[kind]
    loader = load(data := make())
    del first_store(data).y
    data.note = torch.zeros(12)
    assert all("y" in next(one for one in batch.stores if "x" in one) for batch in loader)
    data = graph()
    loader = FixedSizeNeighborLoader(data, [2], exclude_keys=["y"])
    replace_labels(data)
    next(iter(loader))


@pytest.mark.parametrize("name", ["weight", "scale"])
def test_values_that_the_loader_copied_are_refused_after_an_edit(name):
    data = graph()
    loader = FixedSizeNeighborLoader(data, [2])
    data.scale, data.weight = (0.5, data.weight.zero_()) if name == "weight" else (2.0, data.weight)
    with pytest.raises(ValueError, match=f"'{name}' was replaced or edited"):
        next(iter(loader))


def test_a_change_of_pygs_clusters_is_refused(monkeypatch):
    monkeypatch.setattr(ClusterData, "_metis", lambda self, edges, n: torch.arange(n) // 4)
    loader = FixedSizeClusterLoader(parts := ClusterData(graph(), 3, log=False))
    replace_labels(parts.data)
    with pytest.raises(ValueError, match="'y' was replaced"):
        next(iter(loader))

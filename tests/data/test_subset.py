"""Some graphs of a flat dataset, taken, viewed or asked for one by one, are those of a list."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore, Level
from popgeo.data.flat_store import why_not_flat
from popgeo.data.separate import LazyDict
from popgeo.data.sort_edges import sort_edges
from popgeo.data.subset import take
from tests.support.graphs import CITES, WRITES, assert_same_graphs, graph, hetero_graph, same
from tests.support.loaders import InMemory, OnDisk
from tests.support.plain_batch import RICH_LEVELS, rich_graph

STATED = {name: "graph" if level == "rows" else level for name, level in RICH_LEVELS.items()}
RICH = [rich_graph(nodes, edges, seed) for seed, (nodes, edges) in enumerate([(3, 4), (0, 0), (2, 5), (4, 1)])]
HETERO = [hetero_graph(n, 4 - n, n, 2 * n, n) for n in (1, 3, 2, 1)]


def flat(graphs: list) -> FlatStore:
    return FlatStore.from_dataset(graphs, levels=STATED if isinstance(graphs[0], Data) else None)


def assert_same_columns(found: FlatStore, expected: FlatStore) -> None:
    assert found.sizes.tolist() == expected.sizes.tolist()
    assert (len(found), found.indices is None) == (len(expected), expected.indices is None)
    for own, other in zip(found.attributes, expected.attributes, strict=True):
        assert (own.store, own.name, own.axis, own.dim) == (other.store, other.name, other.axis, other.dim)
        assert same(own.values, other.values) if other.is_tensor else list(own.values) == list(other.values)
        assert (own.increments is None) == (other.increments is None)
        assert own.increments is None or same(own.increments, other.increments), own.name
    for pairs in ((found.row_pointers, expected.row_pointers), (found.row_ends or {}, expected.row_ends or {})):
        assert pairs[0].keys() == pairs[1].keys()
        assert all(same(pairs[0][key], pairs[1][key]) for key in pairs[1])


@pytest.mark.parametrize("graphs", [RICH, HETERO], ids=["one", "hetero"])
@pytest.mark.parametrize("ids", [[0], [3, 0], [2, 2, 1, 0], [1, 0, 2, 3]])
@pytest.mark.parametrize("is_sorted", [False, True], ids=["as they come", "sorted"])
def test_graphs_that_are_taken_are_those_of_a_list(graphs, ids, is_sorted):
    store, expected = flat(graphs), flat([graphs[i] for i in ids])
    if is_sorted:
        store, expected = sort_edges(store), sort_edges(expected)
    if store.row_pointers.keys() == expected.row_pointers.keys():
        assert_same_columns(take(store, np.array(ids)), expected)
        view = store.view([3, 2, 1, 0])
        assert_same_columns(take(view, 3 - np.array(ids)), expected)
    if not is_sorted:
        assert_same_graphs(take(store, np.array(ids))[:], [graphs[i] for i in ids])


@pytest.mark.parametrize("graphs", [RICH, HETERO], ids=["one", "hetero"])
def test_graphs_are_asked_for_by_number_slice_list_and_mask(graphs):
    store = flat(graphs)
    assert_same_graphs([store[i] for i in range(-4, 4)], graphs + graphs)
    assert type(store[np.int64(1)]) is type(graphs[0])
    for index in (slice(None, None, -1), slice(1, 3), [2, 0], np.array([3]), torch.tensor([True, False, True, False])):
        ids = np.arange(4)[index.numpy() if isinstance(index, torch.Tensor) else index].tolist()
        view = store[index]
        assert view.attributes is store.attributes
        assert_same_graphs(list(view), [graphs[i] for i in ids])
        assert_same_graphs([view[-1]], [graphs[ids[-1]]])
        assert view.sizes.tolist() == store.sizes[ids].tolist()
        assert view[::-1].indices.tolist() == ids[::-1]
    for number in (4, -5):
        with pytest.raises(IndexError, match=f"Graph {number} was asked for; there are 4"):
            store[number]
    assert (len(store), store.num_stored, len(store[[1]]), store[[1]].num_stored) == (4, 4, 1, 4)


def test_a_graph_that_is_asked_for_has_memory_of_its_own():
    store = FlatStore.from_dataset([graph(3, 4)])
    store[0].x.fill_(7)
    assert_same_graphs([store[0]], [graph(3, 4)])


def test_attributes_are_left_out_and_with_all_of_an_edges_the_edges():
    store = sort_edges(FlatStore.from_dataset(HETERO))
    assert FlatStore.from_dataset(store, exclude_keys=["nothing"]) is store
    some = FlatStore.from_dataset(store, exclude_keys=["edge_attr"])
    assert some.sizes.tolist() == store.sizes.tolist()
    assert some.row_ends is store.row_ends
    none = FlatStore.from_dataset(store, exclude_keys=["edge_attr", "edge_index"])
    assert none.sizes.tolist() == [[*row[:2], 0, 0] for row in store.sizes.tolist()]
    assert [a.name for a in none.attributes] == ["y", "x"]
    assert {key: ends.tolist() for key, ends in none.row_ends.items()} == dict.fromkeys((WRITES, CITES), [0] * 9)
    assert store.sizes.tolist() == [[n, 4 - n, n, 2 * n] for n in (1, 3, 2, 1)]
    plain = FlatStore.from_dataset(FlatStore.from_dataset(HETERO), exclude_keys=["edge_attr", "edge_index"])
    assert plain.row_ends is None


def test_the_level_of_an_attribute_is_that_in_its_store():
    data = HeteroData()
    data["a"].x, data["b"].x = torch.ones(2, 1), torch.ones(3, 1)
    data.x = torch.ones(1)
    store = FlatStore.from_dataset([data])
    assert [store.level("x", key) for key in (None, "a", "b")] == [Level.GRAPH, Level.NODE, Level.NODE]
    with pytest.raises(ValueError, match=r"The graphs have no attribute 'y'; they have \['x', 'x', 'x'\]"):
        store.level("y")


def test_datasets_that_lie_flat_are_told_from_those_that_make_their_graphs():
    graphs = [graph(2, 1), graph(3, 2)]
    whole = InMemory(graphs)
    for dataset in (graphs, tuple(graphs), FlatStore.from_dataset(graphs), whole, Subset(whole, [1])):
        assert why_not_flat(dataset) is None
    assert why_not_flat(ConcatDataset([whole, graphs])) is None
    made, moved = OnDisk(), InMemory(graphs, ToUndirected())
    for dataset in (made, Subset(made, [0]), ConcatDataset([whole, made])):
        assert why_not_flat(dataset) == "OnDisk does not hold its graphs in memory"
    assert why_not_flat(moved) == "InMemory has a transform, which may be random"
    assert_same_graphs(FlatStore.from_dataset(ConcatDataset([whole, whole]))[:], graphs + graphs)
    assert_same_graphs(FlatStore.from_dataset(moved)[:], [moved[0], moved[1]])


def test_what_a_batch_is_taken_apart_by_is_worked_out_once_and_travels_plain():
    asked = []

    def make(rows: np.ndarray) -> dict:
        asked.append(rows.tolist())
        return {"x": 1, "y": 2}

    lazy = LazyDict(make, np.array([4, 2]))
    assert asked == []
    assert (len(lazy), list(lazy), lazy["y"], dict(lazy), "z" in lazy) == (2, ["x", "y"], 2, {"x": 1, "y": 2}, False)
    assert asked == [[4, 2]]
    assert type(pickle.loads(pickle.dumps(lazy))) is dict


def test_what_pyg_knows_of_a_batch_of_its_own_is_known_of_one_of_fixed_size():
    graphs = [hetero_graph(2, 3, 4, 1), hetero_graph(1, 2, 0, 2)]
    batch = FixedSizeCollater(FixedSizeOptions({"a": 5, "b": 9}, {WRITES: 6, CITES: 3}, 5))(graphs)
    slices, increments = batch._slice_dict, batch._inc_dict
    assert slices["a"]["x"].tolist() == [0, 2, 3, 5, 5, 5]
    assert slices[WRITES]["edge_index"].tolist() == [0, 4, 4, 6, 6, 6]
    assert slices[CITES]["edge_index"].tolist() == [0, 1, 3, 3, 3, 3]
    assert slices["y"].tolist() == [0, 1, 2, 3, 4, 5]
    assert increments[WRITES]["edge_index"].flatten(1).tolist() == [[0, 0], [2, 3], [3, 5], [3, 5], [3, 5]]
    assert increments[WRITES]["edge_index"].shape == (5, 2, 1)
    assert increments["a"]["x"].tolist() == [0] * 5
    assert (batch["b"].num_nodes, batch["b"]._num_nodes) == (9, [3, 2, 4, 0, 0])
    one = FixedSizeCollater(FixedSizeOptions(9, 8, 4))([graph(3, 4), graph(2, 1)])
    assert one._slice_dict["name"].tolist() == [0, 1, 2, 3, 4]
    assert one._inc_dict["name"] is None
    assert one._inc_dict["edge_index"].tolist() == [0, 3, 5, 5]
    assert "_num_nodes" not in one.stores[0].__dict__

"""A graph in stores gives the same batches as in memory, and requests only their rows."""

import pytest
import torch
from torch_geometric.data import Data

import popgeo.loader.large.feature_rows as feature_rows
import popgeo.loader.large.subgraph_source as subgraph_source
from popgeo import FixedSizeClusterLoader, FixedSizeLinkLoader, FixedSizeNeighborLoader, FixedSizeOptions
from tests.support.large_graphs import library, random_graph
from tests.support.stores import in_stores

DATA, LIBRARY = random_graph(), library()
SIZES = FixedSizeOptions(num_nodes=200, num_edges=600)
SEVEN = {"batch_size": 7, "seed": 0, "fixed_size_options": SIZES}
LIBRARY["author", "writes", "paper"].edge_attr = torch.arange(80.0)[:, None]


def check_equal(loader, other) -> list:
    """Check that both loaders give the same batches."""
    batches = list(loader)
    for batch, again in zip(batches, other, strict=True):
        for store, same in zip(batch.stores, again.stores, strict=True):
            assert set(store.keys()) == set(same.keys())
            for name, values in store.items():
                assert torch.equal(values, same[name]) if torch.is_tensor(values) else values == same[name], name
    return batches


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_batches_are_those_from_memory_in_every_layout(layout):
    data, *stores = in_stores(DATA, layout)
    kinds = {**SEVEN, "shuffle": True}
    for choices in ({}, {"disjoint": True}, {"replace": True, "sort_edges": True}):
        loaders = [FixedSizeNeighborLoader(graph, [3, 2], **kinds, **choices) for graph in (data, tuple(stores))]
        for batch in check_equal(*loaders):
            mask = batch.edges_mask
            assert torch.equal(batch.edge_attr[mask], data.edge_attr[batch.e_id[mask]])
            ends = batch.n_id[batch.edge_index[:, mask]]
            assert torch.equal(ends, data.edge_index[:, batch.e_id[mask]])
    links = [FixedSizeLinkLoader(graph, [2], neg_sampling="binary", **kinds) for graph in (data, tuple(stores))]
    check_equal(*links)
    parts = torch.arange(60) // 10
    check_equal(*(FixedSizeClusterLoader(graph, parts=parts, batch_size=2, seed=0) for graph in (data, tuple(stores))))
    check_equal(*(FixedSizeClusterLoader(graph, num_parts=4, batch_size=2, seed=0) for graph in (data, tuple(stores))))


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_batches_of_many_types_are_those_from_memory(layout):
    key = ("author", "writes", "paper")
    data, *stores = in_stores(LIBRARY, layout)
    loaders = [FixedSizeNeighborLoader(graph, [3, 2], "paper", **SEVEN) for graph in (data, tuple(stores))]
    for batch in check_equal(*loaders):
        edges = batch[key]
        mask = edges.edges_mask
        assert torch.equal(edges.edge_attr[mask], data[key].edge_attr[edges.e_id[mask]])
    check_equal(*(FixedSizeLinkLoader(graph, [2], key, **SEVEN) for graph in (data, tuple(stores))))


def test_edge_types_without_attributes_keep_their_place_in_the_order_of_draws(monkeypatch):
    monkeypatch.setattr("popgeo.loader.large.measure_sizes._SOME", 32)
    data = LIBRARY.clone()
    data["paper", "cites", "author"].edge_index = LIBRARY["author", "writes", "paper"].edge_index.flip(0)
    del data["author", "writes", "paper"].edge_attr
    data["paper", "cites", "author"].edge_attr = torch.arange(80.0)[:, None]
    data, *stores = in_stores(data)
    check_equal(
        *(FixedSizeNeighborLoader(graph, [3, 2], "paper", batch_size=7, seed=0) for graph in (data, tuple(stores)))
    )


def test_a_batch_asks_once_for_each_attribute_and_only_for_its_rows():
    _, features, graph = in_stores(DATA)
    loader = FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN, background=False)
    opened = sum(len(numbers) for _, _, numbers in features.requests)
    most = feature_rows._PROBED
    assert opened <= 2 * sum(min(most, len(rows)) for rows in features.tensors.values())  # how the store answers
    features.requests.clear()
    features.calls = 0
    batch = next(iter(loader))
    assert features.calls == 1
    assert sorted(name for _, name, _ in features.requests) == ["edge_attr", "x", "y"]
    for _, name, numbers in features.requests:
        rows = batch.e_id[batch.edges_mask] if name == "edge_attr" else batch.n_id[batch.nodes_mask]
        assert torch.equal(numbers, rows.unique())


def test_coming_batches_ask_together_for_rows_that_are_not_too_many(monkeypatch):
    data, features, graph = in_stores(DATA)
    how = {**SEVEN, "shuffle": True, "background": False}
    loader, whole = (
        FixedSizeNeighborLoader((features, graph), [3, 2], **how),
        FixedSizeNeighborLoader(data, [3, 2], **how),
    )
    features.requests.clear()
    features.calls = 0
    batches = check_equal(loader, whole)
    assert len(batches) == 9
    assert features.calls == 2  # for the first, and for the others
    numbers = {name: rows for _, name, rows in features.requests}  # those of the last request
    assert torch.equal(numbers["x"], torch.cat([batch.n_id[batch.nodes_mask] for batch in batches[1:]]).unique())
    of_batch = 4 * (200 * (batches[0].x[0].numel() + 2) + 600)  # y is int64
    monkeypatch.setattr(subgraph_source, "_BYTES_AT_ONCE", 3 * of_batch)
    features.calls = 0
    list(loader)
    assert features.calls == 4


def test_the_next_batch_is_asked_for_while_a_step_runs():
    _, features, graph = in_stores(DATA)
    loader = FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN)
    assert loader.choices.background
    features.calls = 0
    items = iter(loader)
    next(items)
    for _ in range(200):
        if features.calls == 2:
            break
        torch.rand(1000, 100).sort()
    assert features.calls >= 2
    items.close()


def test_sizes_that_no_store_knows_are_found_and_batches_have_one_shape(monkeypatch):
    monkeypatch.setattr("popgeo.loader.large.measure_sizes._SOME", 32)
    # node 59 has edges, so that as many nodes as edges lead to are all
    data, features, graph = in_stores(DATA, knows_sizes=False)
    assert int(data.edge_index.max()) == 59
    features.tensors.pop((None, "y"))
    del data.y
    loader = FixedSizeNeighborLoader((features, graph), [3, 2], batch_size=7, shuffle=True, seed=0)
    batches = check_equal(FixedSizeNeighborLoader(data, [3, 2], batch_size=7, shuffle=True, seed=0), loader)
    assert len({(batch.num_nodes, batch.num_edges) for batch in batches}) == 1


def test_times_are_read_as_a_whole():
    data, features, graph = in_stores(Data(**{**DATA.to_dict(), "time": torch.arange(60)}))
    how = {"time_attr": "time", "input_time": torch.arange(60), **SEVEN}
    check_equal(*(FixedSizeNeighborLoader(graph, [3, 2], **how) for graph in (data, (features, graph))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.flip(0) if rows.numel() else rows, "in the order of the request"),
        (lambda rows: rows[1:], "rows to a request for"),
        (lambda rows: None, "with NoneType; rows are a tensor"),
        (lambda rows: rows.tolist(), "with list; rows are a tensor"),
    ],
)
def test_a_store_that_answers_something_else_is_refused(change, message):
    _, features, graph = in_stores(DATA)
    features._get_tensor = lambda attr: change(features.tensors[None, attr.attr_name][attr.index])
    with pytest.raises(ValueError, match=message):
        FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.double(), r"float64, not \[3\] torch.float32"),
        (lambda rows: rows[:, :2], r"with \[2\] torch.float32"),
        (lambda rows: rows[:-1], "rows to a request for"),
    ],
)
def test_a_store_that_changes_its_answers_is_told(change, message):
    _, features, graph = in_stores(DATA)
    loader = FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN)
    features.tensors.pop((None, "y"))
    get = features._get_tensor
    features._get_tensor = lambda attr: change(get(attr)) if attr.attr_name == "x" else get(attr)
    features.tensors[None, "y"] = DATA.y
    with pytest.raises(ValueError, match=message):
        next(iter(loader))


def test_a_store_that_answers_only_large_requests_out_of_order_is_refused():
    _, features, graph = in_stores(DATA)
    get = features._get_tensor
    features._get_tensor = lambda attr: get(attr).flip(0) if len(attr.index) > 40 else get(attr)
    with pytest.raises(ValueError, match="in the order of the request"):
        FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN)


class GoneError(Exception):
    """An error of a database's client, without a base class of Python's own errors."""


def test_a_graph_store_is_asked_again_and_then_named(monkeypatch):
    monkeypatch.setattr(feature_rows, "_WAITS", (0.0, 0.0))
    _, features, graph = in_stores(DATA)
    get, failures = graph._get_edge_index, [GoneError(), GoneError()]

    def answer(attr):
        if failures:
            raise failures.pop()
        return get(attr)

    graph._get_edge_index = answer
    check_equal(*(FixedSizeNeighborLoader(whole, [3, 2], **SEVEN) for whole in (DATA, (features, graph))))
    failures.extend(GoneError() for _ in range(3))
    with pytest.raises(ConnectionError, match="asked 3 times for edges of None"):
        FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN)


def test_edges_that_lead_to_nobody_or_to_half_a_node_are_refused():
    _, features, graph = in_stores(DATA, knows_sizes=False)
    graph.edges[0][1][0][3] = 10_000
    with pytest.raises(ValueError, match="edges that lead to missing rows"):
        FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN)
    _, features, graph = in_stores(DATA)
    attr, (row, col) = graph.edges[0]
    graph.edges[0] = attr, (row + 0.5, col)
    with pytest.raises(ValueError, match=r"float32 and torch.int64; nodes have whole numbers"):
        FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN)


def test_a_graph_of_pyg_as_a_store_says_which_attributes_of_edges_it_does_not_list():
    with pytest.warns(UserWarning, match=r"batches have no \['edge_attr'\]"):
        FixedSizeNeighborLoader((DATA, DATA), [3, 2], **SEVEN)


def test_a_store_that_lacks_an_attribute_is_named():
    _, features, graph = in_stores(DATA)
    loader = FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN)
    features.tensors.pop((None, "y"))
    with pytest.raises(ValueError, match=r"lists .*'y' of None, but lacks a part of it.*exclude_keys"):
        next(iter(loader))
    with pytest.raises(ValueError, match="No attribute 'when'"):
        FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN, time_attr="when")


def test_a_store_that_goes_away_is_asked_again_and_no_batch_is_lost_or_doubled():
    _, features, graph = in_stores(DATA)
    loader = FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN, shuffle=True, background=False)
    seen, features.failures = [], 2

    def take(batches):
        for batch in batches:
            seen.append(batch)
            features.failures = 99

    with pytest.raises(ConnectionError, match=r"asked 3 times for 'x' of None.*continue with this batch"):
        take(loader)
    features.failures = 0
    state = loader.state_dict()
    loader.load_state_dict(state)
    seen += list(loader)
    nodes = [node for batch in seen for node in batch.n_id[batch.seeds_mask].tolist()]
    assert sorted(nodes) == list(range(60))
    whole = list(FixedSizeNeighborLoader(DATA, [3, 2], **SEVEN, shuffle=True))
    assert all(torch.equal(a.x, b.x) for a, b in zip(whole, seen, strict=True))


def test_sizes_that_contradict_each_other_are_refused():
    _, features, graph = in_stores(DATA)
    features.tensors[None, "x"] = features.tensors[None, "x"][:50]
    with pytest.raises(ValueError, match=r"How many nodes are there\?.*60.*'x', says 50"):
        FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN)
    _, features, graph = in_stores(DATA)
    graph.edges[0][0].size = (40, 40)
    with pytest.raises(ValueError, match=r"edges lead to number 59"):
        FixedSizeNeighborLoader((features, graph), [3, 2], **SEVEN, exclude_keys=["x", "y"])
    _, features, graph = in_stores(LIBRARY)
    features.put_tensor(torch.ones(3), group_name=("a", "b", "c"), attr_name="w", index=None)
    with pytest.raises(ValueError, match=r"'w' of .*edges are of types"):
        FixedSizeNeighborLoader((features, graph), [3, 2], "paper", **SEVEN)

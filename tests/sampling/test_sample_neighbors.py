"""Neighbors of seeds: by hand, then against the plain definition, for every combination of what can be asked."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.native import library
from popgeo.sampling import CompressedGraph, sample_neighbors
from tests.support.sampled import ONLY, Edges, Question, check_directional, induced, same

#  0 <- 1, 2, 3     1 <- 2     3 <- 4     5 stands alone; edges in this order
TREE = torch.tensor([[1, 2, 3, 2, 4], [0, 0, 0, 1, 3]])


def tree(**columns: Any) -> CompressedGraph:
    return CompressedGraph.from_edge_index(TREE, num_nodes=6, **columns)


def tensor(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_all_neighbors_of_two_hops_come_in_order(native):
    sample = sample_neighbors(tree(), tensor(0), [-1, -1])
    assert sample.node.tolist() == [0, 1, 2, 3, 4]
    assert sample.edge_index.tolist() == [[1, 2, 3, 2, 4], [0, 0, 0, 1, 3]]
    assert sample.edge.tolist() == [0, 1, 2, 3, 4]
    assert (sample.num_sampled_nodes, sample.num_sampled_edges) == ((1, 3, 1), (3, 2))
    assert sample.batch is None


def test_outgoing_neighbors_are_destinations(native):
    sample = sample_neighbors(tree(direction="outgoing"), tensor(2), [-1, -1])
    assert sample.node.tolist() == [2, 0, 1]
    assert sample.edge_index.tolist() == [[0, 0, 2], [1, 2, 1]]
    assert sample.edge.tolist() == [1, 3, 0]


def test_seeds_stay_first_in_the_order_given_and_one_that_stands_twice_is_two_nodes(native):
    sample = sample_neighbors(tree(), tensor(3, 1, 3, 2), [-1])
    assert sample.node.tolist() == [3, 1, 3, 2, 4]
    assert sample.edge_index.tolist() == [[4, 3, 4], [0, 1, 2]]
    assert sample.num_seeds == 4


def test_an_isolated_seed_no_seed_and_no_hop_are_right_samples(native):
    for seeds, hops in ((tensor(5), [-1, 2]), (tensor(), [-1, 2]), (tensor(0, 2), []), (tensor(0), [0, 5])):
        sample = sample_neighbors(tree(), seeds, hops)
        assert sample.node.tolist() == seeds.tolist()
        assert sample.edge_index.shape == (2, 0)
        assert sample.num_sampled_nodes == (len(seeds), *[0] * len(hops))
        assert sample.num_sampled_edges == (*[0] * len(hops),)


def test_trees_of_a_disjoint_sample_share_no_node(native):
    sample = sample_neighbors(tree(), tensor(0, 1), [-1, -1], disjoint=True)
    assert sample.node.tolist() == [0, 1, 1, 2, 3, 2, 2 + 2]
    assert sample.batch is not None
    assert sample.batch.tolist() == [0, 1, 0, 0, 0, 1, 0]
    assert sample.edge_index.tolist() == [[2, 3, 4, 5, 3, 6], [0, 0, 0, 1, 2, 4]]


def test_a_sample_in_both_directions_has_each_edge_and_its_reverse_once(native):
    both = CompressedGraph.from_edge_index(torch.tensor([[1, 0, 2], [0, 1, 0]]), num_nodes=3)
    sample = sample_neighbors(both, tensor(0), [-1, -1], subgraph_type="bidirectional")
    assert sample.edge_index.tolist() == [[1, 2, 0, 0], [0, 0, 1, 2]]
    assert sample.edge.tolist() == [0, 2, 1, 2]
    assert sample.num_sampled_edges is None


def test_an_induced_sample_has_all_edges_between_its_nodes(native):
    sample = sample_neighbors(tree(), tensor(0), [-1], subgraph_type="induced")
    assert sample.node.tolist() == [0, 1, 2, 3]
    assert sample.edge_index.tolist() == [[1, 2, 3, 2], [0, 0, 0, 1]]
    assert sample.edge.tolist() == [0, 1, 2, 3]


def test_no_neighbor_is_newer_than_its_seed_however_the_edges_stand(native):
    graph = tree(node_time=tensor(0, 30, 10, 20, 5, 0))
    sample = sample_neighbors(graph, tensor(0, 0), [-1, -1], seed_time=tensor(20, 9))
    assert sample.node.tolist() == [0, 0, 2, 3, 4]
    assert sample.batch is not None
    assert sample.batch.tolist() == [0, 1, 0, 0, 0]
    latest = sample_neighbors(graph, tensor(0), [1], seed_time=tensor(25), temporal_strategy="last")
    assert latest.node.tolist() == [0, 3]
    by_edge = tree(edge_time=tensor(3, 2, 1, 0, 0))
    assert sample_neighbors(by_edge, tensor(0), [-1], seed_time=tensor(2)).edge.tolist() == [2, 1]


def test_an_edge_without_weight_is_never_drawn(native):
    graph = tree(edge_weight=torch.tensor([0.0, 2, 3, 0, 1]))
    assert sample_neighbors(graph, tensor(0), [-1]).edge.tolist() == [1, 2]
    assert set(sample_neighbors(graph, tensor(0), [50], replace=True).edge.tolist()) == {1, 2}
    assert len(sample_neighbors(graph, tensor(1), [2], replace=True).edge) == 0


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Draw a homogeneous question with a valid combination of choices."""
    num_nodes, num_edges = draw(st.integers(1, 12)), draw(st.integers(0, 40))
    random = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    edges = Edges(
        torch.randint(num_nodes, (2, num_edges), generator=random),
        (num_nodes, num_nodes),
        direction=draw(st.sampled_from(["incoming", "outgoing"])),
    )
    timed = draw(st.sampled_from(["", "", "node_time", "edge_time"]))
    if timed:
        size = num_nodes if timed == "node_time" else num_edges
        setattr(edges, timed, torch.randint(9, (size,), generator=random))
    strategy = draw(st.sampled_from(["uniform", "last"])) if timed else "uniform"
    if strategy == "uniform" and draw(st.booleans()):
        edges.weight = torch.rand(num_edges, generator=random) * (torch.rand(num_edges, generator=random) < 0.7)
    seeds = torch.randint(num_nodes, (draw(st.integers(0, 5)),), generator=random)
    return Question(
        {ONLY: edges},
        {"": seeds},
        {ONLY: draw(st.lists(st.sampled_from([-1, 0, 1, 2, 3, 70]), max_size=3))},
        {"": torch.randint(9, (len(seeds),), generator=random)} if timed else None,
        {
            "replace": strategy == "uniform" and draw(st.booleans()),
            "disjoint": draw(st.booleans()),
            "temporal_strategy": strategy,
            "seed": draw(st.integers(0, 2**64 - 1)),
        },
    )


@settings(max_examples=40, deadline=None)
@given(question=questions())
def test_a_sample_is_what_its_drawn_edges_lead_to(question):
    sample = question.ask()
    check_directional(question, sample)
    assert same(sample, question.ask(torch.int64))
    with library.without_native():
        assert same(sample, question.ask())


@settings(max_examples=40, deadline=None)
@given(question=questions())
def test_an_induced_sample_has_the_nodes_of_the_directional_one_and_every_edge_between_them(question):
    directional, sample = question.ask(), question.ask(subgraph_type="induced")
    assert torch.equal(sample.node[""], directional.node[""])
    found = list(zip(sample.row[ONLY].tolist(), sample.col[ONLY].tolist(), sample.edge[ONLY].tolist(), strict=True))
    assert len(set(found)) == len(found)
    assert set(found) == induced(question, sample)[ONLY]
    with library.without_native():
        assert same(sample, question.ask(subgraph_type="induced"))


@settings(max_examples=40, deadline=None)
@given(question=questions())
def test_a_sample_in_both_directions_adds_only_the_reverses_that_are_missing(question):
    one_way, sample = question.ask(), question.ask(subgraph_type="bidirectional")
    drawn = len(one_way.row[ONLY])
    assert torch.equal(sample.edge[ONLY][:drawn], one_way.edge[ONLY])
    pairs = list(zip(sample.row[ONLY].tolist(), sample.col[ONLY].tolist(), strict=True))
    assert set(pairs) == set(pairs[:drawn]) | {(col, row) for row, col in pairs[:drawn]}
    assert not set(pairs[drawn:]) & set(pairs[:drawn])


def random_graph(num_nodes: int = 3000, num_edges: int = 40_000) -> CompressedGraph:
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(1))
    return CompressedGraph.from_edge_index(edge_index, num_nodes)


def test_a_sample_is_the_same_for_any_number_of_threads_and_another_for_another_seed():
    graph, seeds = random_graph(), torch.arange(1500)
    one = sample_neighbors(graph, seeds, [5, 5], seed=3)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        assert torch.equal(sample_neighbors(graph, seeds, [5, 5], seed=3).edge, one.edge)
    assert not torch.equal(sample_neighbors(graph, seeds, [5, 5], seed=4).edge, one.edge)


def test_without_a_seed_a_sample_follows_torchs_own_generator():
    graph, seeds = random_graph(), torch.arange(9)
    torch.manual_seed(5)
    one, other = (sample_neighbors(graph, seeds, [5]).edge for _ in range(2))
    assert not torch.equal(one, other)
    torch.manual_seed(5)
    assert torch.equal(sample_neighbors(graph, seeds, [5]).edge, one)


def test_trees_times_nodes_beyond_32_bits_are_kept_apart(native):
    """Tree 0 with node 0, and tree 61,356 with node 47,296, are 2^32 apart in a count of all pairs."""
    edge_index = torch.tensor([[0, 47_296, 47_296], [1, 2, 2]])
    graph = CompressedGraph.from_edge_index(edge_index, num_nodes=70_000)
    seeds = torch.full((61_357,), 5)
    seeds[0], seeds[61_356] = 1, 2
    sample = sample_neighbors(graph, seeds, [2], disjoint=True)
    assert sample.node[61_357:].tolist() == [0, 47_296]
    assert sample.row.tolist() == [61_357, 61_358, 61_358]


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        ({}, {"seeds": tensor(6)}, "seeds contains 6; indices must be in 0 ... 5"),
        ({}, {"seeds": tensor(-1)}, "seeds contains -1"),
        ({}, {"seeds": torch.tensor([True, False])}, "mask.nonzero"),
        ({}, {"seeds": torch.tensor([0.5])}, "float32"),
        ({}, {"seeds": tensor(1).view(1, 1)}, r"\[1, 1\]; pass int32"),
        ({}, {"seeds": {"user": tensor(1)}}, "must be tensors"),
        ({}, {"num_neighbors": [-2]}, "-1 for all"),
        ({}, {"num_neighbors": [1.5]}, "-1 for all"),
        ({}, {"subgraph_type": "both"}, "both"),
        ({}, {"seed_time": tensor(1)}, "has no times"),
        ({}, {"temporal_strategy": "last"}, "needs seed_time"),
        ({"node_time": tensor(0, 0, 0, 0, 0, 0)}, {}, "seed_time is not given"),
        ({"node_time": tensor(0, 0, 0, 0, 0, 0)}, {"seed_time": tensor(1, 2)}, r"it needs int64 \[1\]"),
        ({"node_time": tensor(0, 0, 0, 0, 0, 0)}, {"seed_time": torch.tensor([0.5])}, "float32"),
        (
            {"node_time": tensor(0, 0, 0, 0, 0, 0)},
            {"seed_time": tensor(1), "temporal_strategy": "last", "replace": True},
            "leave out replace",
        ),
        (
            {"node_time": tensor(0, 0, 0, 0, 0, 0), "edge_weight": torch.ones(5)},
            {"seed_time": tensor(1), "temporal_strategy": "last"},
            "without edge_weight",
        ),
    ],
)
def test_a_wrong_question_is_refused(columns, arguments, message):
    with pytest.raises(ValueError, match=message):
        sample_neighbors(tree(**columns), **({"seeds": tensor(0), "num_neighbors": [2]} | arguments))


def test_a_graph_of_two_node_types_is_no_homogeneous_graph():
    graph = CompressedGraph.from_edge_index(torch.tensor([[3], [1]]), (4, 2))
    with pytest.raises(ValueError, match=r"(2|4) nodes here and (2|4) there"):
        sample_neighbors(graph, tensor(0), [1])

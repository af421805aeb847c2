"""Neighbors in a graph of several node and edge types."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.native import library
from popgeo.sampling import CompressedGraph, sample_neighbors
from tests.support.sampled import Edges, Question, check_directional, induced, same

CITES, WRITES, WRITTEN = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "rev_writes", "author")
SIZES = {"paper": 4, "author": 3}


def library_of_papers(**directions: str) -> dict[tuple[str, str, str], CompressedGraph]:
    """Paper 0 cites nothing and is cited by 1 and 2; authors 0 and 1 wrote paper 0, author 2 wrote paper 1."""
    cites, writes = torch.tensor([[1, 2], [0, 0]]), torch.tensor([[0, 1, 2], [0, 0, 1]])
    return {
        CITES: CompressedGraph.from_edge_index(cites, 4, **directions),
        WRITES: CompressedGraph.from_edge_index(writes, (3, 4), **directions),
        WRITTEN: CompressedGraph.from_edge_index(writes.flip(0), (4, 3), **directions),
    }


def tensor(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_two_hops_over_three_edge_types(native):
    counts = {CITES: [-1, -1], WRITES: [-1, -1], WRITTEN: [0, -1]}
    sample = sample_neighbors(library_of_papers(), {"paper": tensor(0)}, counts)
    assert sample.node["paper"].tolist() == [0, 1, 2]
    assert sample.node["author"].tolist() == [0, 1, 2]
    assert sample.edge_index[CITES].tolist() == [[1, 2], [0, 0]]
    assert sample.edge_index[WRITES].tolist() == [[0, 1, 2], [0, 0, 1]]
    assert sample.edge_index[WRITTEN].tolist() == [[0, 0], [0, 1]]
    assert sample.num_sampled_nodes == {"paper": (1, 2, 0), "author": (0, 2, 1)}
    assert sample.num_sampled_edges == {CITES: (2, 0), WRITES: (2, 1), WRITTEN: (0, 2)}
    assert sample.num_seeds == {"paper": 1, "author": 0}


def test_an_edge_type_without_edges_brings_nothing(native):
    graphs = library_of_papers() | {CITES: CompressedGraph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), 4)}
    sample = sample_neighbors(graphs, {"paper": tensor(0)}, [2])
    assert sample.node["paper"].tolist() == [0]
    assert sample.edge_index[CITES].shape == (2, 0)
    assert len(sample.node["author"]) == 2


def test_trees_are_numbered_through_all_seed_types(native):
    seeds = {"author": tensor(2, 0), "paper": tensor(1)}
    sample = sample_neighbors(library_of_papers(), seeds, [-1], disjoint=True)
    assert sample.batch is not None
    assert {name: batch.tolist() for name, batch in sample.batch.items()} == {
        "author": [0, 1, 2],
        "paper": [2, 0, 1],
    }
    assert sample.node["paper"].tolist() == [1, 1, 0]


def test_a_sample_in_both_directions_adds_reverses_to_the_twin_type(native):
    counts = {CITES: [0], WRITES: [-1], WRITTEN: [0]}
    sample = sample_neighbors(library_of_papers(), {"paper": tensor(0)}, counts, subgraph_type="bidirectional")
    assert sample.edge_index[WRITES].tolist() == [[0, 1], [0, 0]]
    assert sample.edge_index[WRITTEN].tolist() == [[0, 0], [0, 1]]
    assert sample.edge[WRITTEN].tolist() == sample.edge[WRITES].tolist() == [0, 1]


def test_types_without_times_are_not_limited(native):
    graphs = library_of_papers() | {
        CITES: CompressedGraph.from_edge_index(torch.tensor([[1, 2], [0, 0]]), 4, node_time=tensor(0, 7, 3, 0))
    }
    sample = sample_neighbors(graphs, {"paper": tensor(0)}, [-1], seed_time={"paper": tensor(5)})
    assert sample.node["paper"].tolist() == [0, 2]
    assert sample.node["author"].tolist() == [0, 1]


@st.composite
def questions(draw: st.DrawFn) -> Question:
    sizes = {"a": draw(st.integers(1, 7)), "b": draw(st.integers(1, 7))}
    random = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    direction = draw(st.sampled_from(["incoming", "outgoing"]))
    timed = draw(st.booleans())
    edges = {}
    for edge_type in (("a", "to", "b"), ("b", "rev_to", "a"), ("b", "of", "b")):
        ends = (sizes[edge_type[0]], sizes[edge_type[2]])
        index = torch.stack([torch.randint(size, (12,), generator=random) for size in ends])
        edges[edge_type] = Edges(index, ends, direction=direction)
        if timed and edge_type != ("b", "rev_to", "a"):
            edges[edge_type].edge_time = torch.randint(9, (12,), generator=random)
    seeds = {name: torch.randint(sizes[name], (draw(st.integers(0, 3)),), generator=random) for name in ("b", "a")}
    hops = draw(st.integers(0, 3))
    return Question(
        edges,
        seeds,
        {edge_type: [draw(st.sampled_from([-1, 0, 1, 2, 5])) for _ in range(hops)] for edge_type in edges},
        {t: torch.randint(9, (len(nodes),), generator=random) for t, nodes in seeds.items()} if timed else None,
        {"replace": draw(st.booleans()), "disjoint": draw(st.booleans()), "seed": draw(st.integers(0, 9))},
    )


@settings(max_examples=40, deadline=None)
@given(question=questions())
def test_a_sample_is_what_its_drawn_edges_lead_to(question):
    if question.seed_time is not None:  # edges without a time are seen from every seed
        question.edges[("b", "rev_to", "a")].edge_time = torch.full((12,), -1)
    sample = question.ask()
    check_directional(question, sample)
    assert same(sample, question.ask(torch.int64))
    full = question.ask(subgraph_type="induced")
    for edge_type, expected in induced(question, full).items():
        columns = (full.row[edge_type].tolist(), full.col[edge_type].tolist(), full.edge[edge_type].tolist())
        assert sorted(zip(*columns, strict=True)) == sorted(expected)
    both = question.ask(subgraph_type="bidirectional")
    forth, back = (both.edge_index[name].t().tolist() for name in (("a", "to", "b"), ("b", "rev_to", "a")))
    assert {(u, v) for u, v in forth} == {(u, v) for v, u in back}
    with library.without_native():
        assert same(sample, question.ask())
        assert same(full, question.ask(subgraph_type="induced"))


@pytest.mark.parametrize(
    ("graphs", "arguments", "message"),
    [
        ({}, {"seeds": {"reader": tensor(0)}}, "'reader'"),
        ({}, {"seeds": {"author": tensor(3)}}, "seeds contains 3"),
        ({}, {"seeds": tensor(0)}, "must be mappings"),
        ({}, {"num_neighbors": {CITES: [1], WRITES: [1]}}, "missing.*rev_writes"),
        ({}, {"num_neighbors": {CITES: [1], WRITES: [1, 1], WRITTEN: [1]}}, "different numbers of hops"),
        ({CITES: CompressedGraph.from_edge_index(tensor(0).expand(2, 1), 5)}, {}, "4 nodes here and 5 there"),
        (
            {CITES: CompressedGraph.from_edge_index(tensor(0).expand(2, 1), 4, direction="outgoing")},
            {},
            "in one direction",
        ),
        (
            {CITES: CompressedGraph.from_edge_index(tensor(0).expand(2, 1), 4, edge_time=tensor(0))},
            {"seed_time": {"author": tensor(1)}},
            "must agree",
        ),
        (
            {WRITTEN: CompressedGraph.from_edge_index(tensor(0).expand(2, 1), (4, 3))},
            {"subgraph_type": "bidirectional"},
            "not a mirror",
        ),
    ],
)
def test_a_wrong_question_is_refused(graphs: dict[Any, Any], arguments: dict[str, Any], message: str):
    given_ = {"seeds": {"paper": tensor(0)}, "num_neighbors": [2]} | arguments
    with pytest.raises(ValueError, match=message):
        sample_neighbors(library_of_papers() | graphs, **given_)


def test_both_directions_need_a_twin_type():
    graphs = library_of_papers()
    del graphs[WRITTEN]
    with pytest.raises(ValueError, match="ToUndirected"):
        sample_neighbors(graphs, {"paper": tensor(0)}, [1], subgraph_type="bidirectional")

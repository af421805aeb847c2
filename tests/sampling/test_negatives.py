"""Negatives: never an edge, and every pair without one as likely as the next."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from popgeo.sampling import NonEdges, sample_negatives

#  0 -> 1, 2   1 -> 0   2 -> 2, of three nodes: no edge for 00, 11, 12, 20, 21
EDGES = torch.tensor([[0, 1, 0, 2, 0], [1, 0, 2, 2, 1]])
FREE = [(0, 0), (1, 1), (1, 2), (2, 0), (2, 1)]


def pairs(negatives: torch.Tensor) -> list[tuple[int, int]]:
    return list(zip(*negatives.tolist(), strict=True))


def test_only_pairs_without_an_edge_are_drawn_each_as_likely_as_the_next():
    positives = torch.zeros(2, 1, dtype=torch.int64)
    negatives = sample_negatives(positives, NonEdges.from_edge_index(EDGES, 3), amount=100_000, seed=5)
    drawn = pairs(negatives)
    counts = [drawn.count(pair) for pair in FREE]
    assert sum(counts) == 100_000
    assert chisquare(counts).pvalue > 1e-3


def test_triplets_have_the_sources_of_their_positives():
    positives = torch.tensor([[1, 2, 0], [0, 2, 1]])
    negatives = sample_negatives(positives, NonEdges.from_edge_index(EDGES, 3), mode="triplet", amount=2, seed=1)
    assert negatives[0].tolist() == [1, 1, 2, 2, 0, 0]
    assert set(pairs(negatives)) <= set(FREE)
    assert negatives[1].view(3, 2)[2].tolist() == [0, 0]


def test_destinations_of_one_source_are_as_likely_as_the_next():
    edges = torch.tensor([[0, 0, 0], [1, 4, 5]])
    positives = torch.zeros(2, 1, dtype=torch.int64)
    non_edges = NonEdges.from_edge_index(edges, (1, 8))
    drawn = sample_negatives(positives, non_edges, mode="triplet", amount=100_000, seed=3)[1]
    counts = np.bincount(drawn, minlength=8)
    assert np.flatnonzero(counts).tolist() == [0, 2, 3, 6, 7]
    assert chisquare(counts[counts > 0]).pvalue > 1e-3


def test_without_edges_to_avoid_any_pair_is_drawn():
    drawn = sample_negatives(torch.zeros(2, 9000, dtype=torch.int64), NonEdges.none((2, 3)), seed=0)
    assert chisquare(np.bincount(drawn[0] * 3 + drawn[1], minlength=6)).pvalue > 1e-3


def test_the_number_is_fixed_and_a_fraction_is_rounded_up():
    non_edges = NonEdges.from_edge_index(EDGES, 3)
    for positives, amount, number in ((3, 0.5, 2), (4, 1, 4), (0, 1, 0), (1, 0.1, 1), (3, 2, 6)):
        drawn = sample_negatives(torch.zeros(2, positives, dtype=torch.int64), non_edges, amount=amount)
        assert drawn.shape == (2, number)


def test_a_seed_names_the_negatives():
    positives, non_edges = torch.zeros(2, 50, dtype=torch.int64), NonEdges.none(1000)
    one, again, other = (sample_negatives(positives, non_edges, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_more_pairs_than_32_bits_count_are_all_reached():
    non_edges = NonEdges.none(1_000_000)
    drawn = sample_negatives(torch.zeros(2, 40_000, dtype=torch.int64), non_edges, seed=2)
    for end in drawn:
        assert chisquare(np.histogram(end, bins=20, range=(0, 1_000_000))[0]).pvalue > 1e-3


@settings(max_examples=60, deadline=None)
@given(sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)), num_edges=st.integers(0, 30), seed=st.integers(0, 99))
def test_every_pair_without_an_edge_is_drawn_and_no_other(sizes, num_edges, seed):
    random = torch.Generator().manual_seed(seed)
    edges = torch.stack([torch.randint(size, (num_edges,), generator=random) for size in sizes])
    free = {(u, v) for u in range(sizes[0]) for v in range(sizes[1])} - set(pairs(edges))
    non_edges = NonEdges.from_edge_index(edges, sizes)
    assert len(non_edges) == len(free)
    if not free:
        return
    positives = torch.zeros(2, 1, dtype=torch.int64)
    assert set(pairs(sample_negatives(positives, non_edges, amount=2000, seed=seed))) == free
    source = min(free)[0]
    positives[0] = source
    drawn = sample_negatives(positives, non_edges, mode="triplet", amount=2000, seed=seed)
    assert set(pairs(drawn)) == {pair for pair in free if pair[0] == source}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"amount": 0}, "more than 0"),
        ({"amount": 1.5, "mode": "triplet"}, "whole number"),
        ({"mode": "ternary"}, "ternary"),
        ({"positives": torch.tensor([0, 1])}, r"\[2\]; pass int32 or int64"),
        ({"positives": torch.tensor([[0.5], [1]])}, "float32"),
        ({"positives": torch.tensor([[0], [3]])}, r"positives\[1\] contains 3"),
        ({"positives": torch.tensor([[-1], [0]])}, "contains -1"),
        (
            {"non_edges": NonEdges.from_edge_index(torch.tensor([[0, 0, 0], [0, 1, 2]]), 3), "mode": "triplet"},
            "Source 0",
        ),
        ({"non_edges": NonEdges.from_edge_index(torch.tensor([[0], [0]]), 1)}, "every pair has an edge"),
    ],
)
def test_a_wrong_question_is_refused(arguments, message):
    right = {"positives": torch.tensor([[0], [0]]), "non_edges": NonEdges.from_edge_index(EDGES, 3)}
    with pytest.raises(ValueError, match=message):
        sample_negatives(**(right | arguments))


def test_edges_outside_the_graph_are_refused():
    with pytest.raises(ValueError, match=r"contains 3"):
        NonEdges.from_edge_index(torch.tensor([[0], [3]]), 3)

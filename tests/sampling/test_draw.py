"""Drawn edges are as likely as they should be: chi-squared on 10^5 draws, of fixed seeds."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from popgeo.native import library
from popgeo.random_numbers import below, hash64, log, unit
from popgeo.sampling import CompressedGraph, sample_neighbors

DRAWS = 100_000
LEAST_LIKELY = 1e-3  # a fair draw is called unfair once in a thousand seeds, and the seed is fixed


def star(num_leaves: int, **columns: torch.Tensor) -> CompressedGraph:
    """Leaves 1 ... num_leaves, all pointing to node 0."""
    leaves = torch.arange(1, num_leaves + 1)
    return CompressedGraph.from_edge_index(
        torch.stack([leaves, torch.zeros_like(leaves)]), num_nodes=num_leaves + 1, **columns
    )


def draws(graph: CompressedGraph, number: int, **options: bool) -> torch.Tensor:
    """Return many draws of edges for node 0, [repeats, number]."""
    seeds = torch.zeros(DRAWS // number, dtype=torch.int64)
    return sample_neighbors(graph, seeds, [number], seed=11, **options).edge.view(-1, number)


def probability(counts: np.ndarray, expected: np.ndarray | None = None) -> float:
    return float(chisquare(counts, expected).pvalue)


@pytest.mark.parametrize(("leaves", "number"), [(20, 5), (3, 1), (200, 100), (7, 6)])
@pytest.mark.parametrize("replace", [False, True])
def test_every_neighbor_is_as_likely_as_the_next(leaves, number, replace):
    drawn = draws(star(leaves), number, replace=replace)
    assert probability(np.bincount(drawn.flatten(), minlength=leaves)) > LEAST_LIKELY
    assert replace or bool((drawn.sort(1).values.diff(dim=1) > 0).all())


def test_every_pair_of_neighbors_is_as_likely_as_the_next():
    drawn = draws(star(7), 2).sort(1).values
    counts = np.bincount(drawn[:, 0] * 7 + drawn[:, 1], minlength=49)
    assert np.count_nonzero(counts) == 21
    assert probability(counts[counts > 0]) > LEAST_LIKELY


def test_weighted_draws_without_replacement_follow_one_another_in_proportion():
    weight = torch.tensor([5.0, 1.0, 2.0, 0.0, 4.0])
    drawn = draws(star(5, edge_weight=weight), 2)
    w = weight.double().numpy()
    pairs = [(i, j) for i, j in permutations(range(5), 2) if w[i] * w[j]]
    expected = np.array([w[i] / w.sum() * w[j] / (w.sum() - w[i]) for i, j in pairs])
    counts = np.bincount(drawn[:, 0] * 5 + drawn[:, 1], minlength=25)
    assert counts.sum() == sum(counts[i * 5 + j] for i, j in pairs)
    assert probability(np.array([counts[i * 5 + j] for i, j in pairs]), expected * len(drawn)) > LEAST_LIKELY


def test_weighted_draws_with_replacement_are_in_proportion():
    weight = torch.tensor([5.0, 1.0, 2.0, 0.0, 4.0, 1e-9])
    counts = np.bincount(draws(star(6, edge_weight=weight), 10, replace=True).flatten(), minlength=6)
    assert counts[3] == counts[5] == 0
    kept = [0, 1, 2, 4]
    assert probability(counts[kept], weight[kept].double().numpy() / 12 * counts.sum()) > LEAST_LIKELY


def test_neighbors_that_may_be_seen_are_as_likely_as_the_next():
    graph = star(8, edge_time=torch.tensor([4, 9, 1, 3, 8, 2, 7, 0]))
    seeds = torch.zeros(DRAWS // 2, dtype=torch.int64)
    sample = sample_neighbors(graph, seeds, [2], seed_time=torch.full_like(seeds, 4), seed=1)
    counts = np.bincount(sample.edge, minlength=8)
    assert np.flatnonzero(counts).tolist() == [0, 2, 3, 5, 7]
    assert probability(counts[counts > 0]) > LEAST_LIKELY


def test_draws_of_many_seeds_are_as_fair_as_those_of_many_rows():
    graph, node = star(4), torch.tensor([0])
    counts = np.bincount([int(sample_neighbors(graph, node, [1], seed=seed).edge) for seed in range(1500)])
    assert probability(counts) > LEAST_LIKELY


def test_a_draw_below_a_limit_is_not_biased_where_the_limit_does_not_divide_the_range():
    """Three quarters of 2^32: a plain multiplication makes every third number twice as likely."""
    limit = 3 * 2**30
    keys = np.full(DRAWS, 7, np.uint64)
    drawn = below(keys, np.arange(DRAWS, dtype=np.uint64), np.full(DRAWS, limit, np.uint64))
    assert int(drawn.max()) < limit
    assert probability(np.bincount((drawn % np.uint64(3)).astype(np.int64))) > LEAST_LIKELY


def test_random_numbers_are_splitmix64():
    assert [hex(word) for word in hash64(np.full(2, 1234567, np.uint64), np.arange(2, dtype=np.uint64))] == [
        hex(6457827717110365317),
        hex(3203168211198807973),
    ]


@given(st.floats(1e-17, 1.0))
def test_the_logarithm_is_right_to_the_last_digits(x):
    assert log(np.array([x]))[0] == pytest.approx(np.log(x), rel=4e-16, abs=1e-16)


def test_random_fractions_reach_neither_end():
    drawn = unit(np.zeros(DRAWS, np.uint64), np.arange(DRAWS, dtype=np.uint64))
    assert 0 < drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() < 1


def test_a_hub_of_a_million_neighbors_is_drawn_from_alike_with_and_without_the_library():
    """Of so many draws below a million about twenty are rejected, and repeated."""
    graph, seeds = star(1_000_000), torch.zeros(DRAWS // 10, dtype=torch.int64)
    sample = sample_neighbors(graph, seeds, [10], replace=True, seed=1)
    with library.without_native():
        plain = sample_neighbors(graph, seeds, [10], replace=True, seed=1)
    assert torch.equal(sample.edge, plain.edge)
    everything = sample_neighbors(graph, seeds[:2], [-1])
    assert torch.equal(everything.node[1:], torch.arange(1_000_001))
    assert torch.equal(everything.row, torch.arange(2, 1_000_002).repeat(2))

"""Partitions have every node in one part, nearly equal sizes and few edges between parts, also without the library."""

import importlib
import importlib.util

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from popgeo.native import library
from popgeo.sampling import PartitionMethod, edge_cut, partition
from popgeo.sampling.multilevel import Graph, contract, multilevel

has_metis = importlib.util.find_spec("pymetis") is not None
METHODS = [
    pytest.param(m, marks=[pytest.mark.skipif(m is PartitionMethod.Metis and not has_metis, reason="no pymetis")])
    for m in PartitionMethod
]


def grid(side: int) -> Tensor:
    node = torch.arange(side * side).view(side, side)
    across = torch.stack([node[:, :-1].flatten(), node[:, 1:].flatten()])
    return torch.cat([across, torch.stack([node[:-1].flatten(), node[1:].flatten()])], dim=1)


def test_the_cut_counts_each_edge_that_joins_two_parts() -> None:
    path = torch.tensor([[0, 1, 2, 2], [1, 2, 3, 1]])
    assert edge_cut(path, torch.tensor([0, 0, 1, 1])) == 2  # 1 -> 2 and 2 -> 1


@pytest.mark.parametrize("method", METHODS)
def test_cliques_joined_by_single_edges_are_the_parts(native: str, method: PartitionMethod) -> None:
    clique = torch.combinations(torch.arange(6)).T
    edges = torch.cat([clique + 6 * i for i in range(4)] + [torch.tensor([[0, 6, 12], [6, 12, 18]])], dim=1)
    parts = partition(edges, 4, method=method)
    assert edge_cut(edges, parts) == 3
    assert parts.bincount().tolist() == [6, 6, 6, 6]


@given(st.integers(1, 60), st.integers(0, 200), st.integers(1, 9), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_our_parts_hold_every_node_and_are_balanced_within_5_percent(
    num_nodes: int, num_edges: int, num_parts: int, seed: int
) -> None:
    num_parts = min(num_parts, num_nodes)
    edges = torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(seed))
    sizes = partition(edges, num_parts, num_nodes=num_nodes, method="Multilevel", seed=seed).bincount()
    assert sizes.sum() == num_nodes
    assert len(sizes) <= num_parts
    assert sizes.max() <= max(-(-num_nodes // num_parts), 1.05 * num_nodes / num_parts)


def test_no_part_is_starved_where_communities_are_larger_than_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(1000, (6000,), generator=generator)
    stays = torch.rand(6000, generator=generator) < 0.8
    near = source % 10 + 10 * torch.randint(100, source.shape, generator=generator)
    edges = torch.stack([source, torch.where(stays, near, torch.randint(1000, source.shape, generator=generator))])
    sizes = partition(edges, 40, num_nodes=1000, method="Multilevel").bincount(minlength=40)
    assert 23 <= sizes.min() <= sizes.max() <= 26


def test_nodes_without_edges_fill_the_parts_up() -> None:
    parts = partition(torch.tensor([[0], [1]]), 5, num_nodes=50, method="Multilevel")
    assert parts.bincount().tolist() == [10] * 5
    assert parts[0] == parts[1]


@given(st.integers(2, 40), st.integers(0, 120), st.integers(2, 6), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_the_plain_path_gives_the_same_parts(num_nodes: int, num_edges: int, num_parts: int, seed: int) -> None:
    if not library.is_available():
        pytest.skip(library.reason())
    edges = np.random.default_rng(seed).integers(num_nodes, size=(2, num_edges))
    graph, num_parts = Graph.from_edges(edges, num_nodes), min(num_parts, num_nodes)
    labels = np.arange(num_nodes) // 3
    compiled, coarse = multilevel(graph, num_parts, seed), contract(graph, labels)
    with library.without_native():
        assert np.array_equal(multilevel(graph, num_parts, seed), compiled)
        assert all(np.array_equal(value, vars(coarse)[name]) for name, value in vars(contract(graph, labels)).items())


def test_a_mesh_is_cut_far_better_than_at_random_and_near_what_metis_finds() -> None:
    edges = grid(40)
    parts = partition(edges, 16, method="Multilevel")
    cut, sizes = edge_cut(edges, parts), parts.bincount(minlength=16)
    assert 0.95 * 100 <= sizes.min() <= sizes.max() <= 1.05 * 100  # none is left empty either
    assert cut < 0.15 * edges.shape[1]  # squares of 10 x 10 cut 240 of 3,120; random parts 15 of 16
    if has_metis:
        assert cut < 2 * edge_cut(edges, partition(edges, 16, method="Metis"))


def test_a_seed_decides_the_parts() -> None:
    edges = grid(12)
    first, again = (partition(edges, 4, method="Multilevel", seed=3) for _ in range(2))
    assert torch.equal(first, again)


def test_directions_loops_and_repeated_edges_do_not_count() -> None:
    edges = grid(8)
    more = torch.cat([edges, edges.flip(0), edges, torch.arange(64).expand(2, -1)], dim=1)
    assert torch.equal(partition(edges, 4, method="Multilevel"), partition(more, 4, method="Multilevel"))


@pytest.mark.parametrize(
    ("edges", "num_parts", "choices", "message"),
    [
        (torch.tensor([[0], [5]]), 2, {"num_nodes": 3}, "edge_index contains 5; indices must be in 0 ... 2"),
        (torch.tensor([[-1], [1]]), 2, {}, "edge_index contains -1"),
        (torch.tensor([[0], [1]]), 3, {}, "num_parts is 3 for 2 nodes"),
        (torch.tensor([[0], [1]]), 0, {}, "num_parts is 0"),
        (torch.zeros(3, 2), 2, {}, r"\[3, 2\]; pass integers"),
        (torch.tensor([[0], [1]]), 2, {"method": "Best"}, "'Best' is not a PartitionMethod"),
    ],
)
def test_wrong_input_is_refused(edges: Tensor, num_parts: int, choices: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition(edges, num_parts, **choices)  # type: ignore[arg-type]


def test_metis_without_its_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("popgeo.sampling.partition"), "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install pymetis"):
        partition(torch.tensor([[0], [1]]), 2, method="Metis")
    assert partition(torch.tensor([[0], [1]]), 2).tolist() in ([0, 1], [1, 0])

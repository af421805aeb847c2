"""Claims about the fixed neighbor lists."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from popgeo.ops.neighbors import Neighbors, distance, knn, pairs, radius


def make_batch(sizes: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return positions on a coarse grid, for equal distances and coinciding nodes, and the graph of each node."""
    generator = torch.Generator().manual_seed(seed)
    pos = torch.randint(0, 4, (sum(sizes), 3), generator=generator).float()
    return pos, torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def real_edges(neighbors: Neighbors) -> set[tuple[int, int]]:
    edges = [tuple(edge) for edge in neighbors.edge_index[:, neighbors.edges_mask].T.tolist()]
    assert len(edges) == len(set(edges)), "an edge stands twice"
    return set(edges)


def nearest_by_hand(pos: Tensor, batch: Tensor, k: int, cutoff: float) -> set[tuple[int, int]]:
    """Find neighbors by the definition, node by node: sort by distance, then by index, keep k."""
    edges = set()
    for i in range(len(pos)):
        others = [j for j in range(len(pos)) if j != i and batch[i] == batch[j]]
        r2 = {j: float((pos[i] - pos[j]).square().sum()) for j in others}
        near = sorted((r2[j], j) for j in others if r2[j] <= cutoff**2)
        edges |= {(j, i) for _, j in near[:k]}
    return edges


def test_three_nodes_on_a_line_worked_out_by_hand():
    pos = torch.tensor([[0.0, 0, 0], [1, 0, 0], [3, 0, 0]])
    edge_index, edge_weight, edges_mask = knn(pos, torch.zeros(3, dtype=torch.long), k=1, cutoff=1.5, num_graphs=1)
    assert edge_index.tolist() == [[1, 0, 2], [0, 1, 2]]
    assert edge_weight.tolist() == [1.0, 1.0, 1.5]
    assert edges_mask.tolist() == [True, True, False]


def test_of_equal_distances_the_lowest_index_is_taken():
    pos = torch.tensor([[0.0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, -1]])
    edges = real_edges(knn(pos, torch.zeros(5, dtype=torch.long), k=2, cutoff=1.1, num_graphs=1))
    assert {edge for edge in edges if edge[1] == 0} == {(1, 0), (2, 0)}


@pytest.mark.parametrize("windowed", [False, True])
@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4), k=st.integers(1, 9), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_edges_are_the_k_nearest_of_the_same_graph(windowed: bool, sizes: list[int], k: int, seed: int):
    pos, batch = make_batch(sizes, seed)
    neighbors = knn(pos, batch, k, 2.5, num_graphs=len(sizes), max_num_nodes=max(sizes) if windowed else None)
    assert neighbors.edge_index.shape == (2, len(pos) * k)
    assert neighbors.edge_index[1].tolist() == [i for i in range(len(pos)) for _ in range(k)]
    assert real_edges(neighbors) == nearest_by_hand(pos, batch, k, 2.5)


@pytest.mark.parametrize("windowed", [False, True])
@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_a_half_list_holds_each_pair_exactly_once(windowed: bool, sizes: list[int], seed: int):
    pos, batch = make_batch(sizes, seed)
    half = pairs(pos, batch, 2.5, num_graphs=len(sizes), max_num_nodes=max(sizes) if windowed else None)
    edges = real_edges(half)
    reverse = {(i, j) for j, i in edges}
    assert not edges & reverse
    assert edges | reverse == nearest_by_hand(pos, batch, len(pos), 2.5)


def test_a_half_list_has_half_the_slots():
    pos, batch = make_batch([6, 4])
    assert pairs(pos, batch, 9.0, num_graphs=2, max_num_nodes=6).edge_index.shape == (2, 10 * 3)


def test_absent_neighbors_sit_at_the_cutoff_and_point_home():
    pos, batch = make_batch([1, 3])
    edge_index, edge_weight, edges_mask = knn(pos, batch, k=5, cutoff=9.0, num_graphs=2, max_num_nodes=3)
    assert edges_mask.sum() == 6
    assert (edge_weight[~edges_mask] == 9.0).all()
    assert (edge_index[0] == edge_index[1])[~edges_mask].all()


def test_padding_nodes_neither_send_nor_receive_in_a_padding_graph_larger_than_the_window():
    pos, batch = make_batch([3, 2, 8])
    nodes_mask = batch < 2
    padded = knn(pos, batch, k=2, cutoff=9.0, num_graphs=3, max_num_nodes=3, nodes_mask=nodes_mask)
    alone = knn(pos[nodes_mask], batch[nodes_mask], k=2, cutoff=9.0, num_graphs=2, max_num_nodes=3)
    assert real_edges(padded) == real_edges(alone)


def test_garbage_in_padding_nodes_changes_nothing_and_has_no_gradient():
    pos, batch = make_batch([3, 2, 4])
    pos[5:] = torch.nan
    pos.requires_grad_()
    neighbors = knn(pos, batch, k=3, cutoff=9.0, num_graphs=3, max_num_nodes=4, nodes_mask=batch < 2)
    neighbors.edge_weight.square().sum().backward()
    assert pos.grad is not None
    assert (pos.grad[5:] == 0).all()
    assert pos.grad[:5].isfinite().all()


def test_gradients_of_both_orders_are_zero_where_nodes_coincide():
    pos = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    r = distance(pos, torch.tensor([[1, 0], [0, 1]]), None, cutoff=5.0)
    (first,) = torch.autograd.grad(r.sum(), pos, create_graph=True)
    (second,) = torch.autograd.grad((first + pos).square().sum(), pos)
    assert (first == 0).all()
    assert (second == 0).all()


def test_the_length_of_an_edge_has_the_right_gradients():
    pos = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    edge_index, edges_mask = torch.tensor([[1, 2, 3, 0], [0, 0, 1, 0]]), torch.tensor([True, True, True, False])
    length = lambda pos: distance(pos, edge_index, edges_mask, 5.0)  # noqa: E731
    assert torch.autograd.gradcheck(length, pos)
    assert torch.autograd.gradgradcheck(length, pos)
    assert_close(length(pos)[0], (pos[0] - pos[1]).norm())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"k": 0}, "k is 0"),
        ({"cutoff": 0.0}, "cutoff is 0.0"),
        ({"max_num_nodes": 3}, "A graph has 4 nodes, max_num_nodes is 3"),
        ({"batch": torch.tensor([1, 0, 1, 0]), "num_graphs": 2}, "batch does not ascend"),
        ({"max_num_nodes": 3, "nodes_mask": torch.ones(4, dtype=torch.bool)}, "A graph has 4 nodes"),
    ],
)
def test_a_wrong_argument_is_refused_with_a_remedy(arguments: dict, words: str):
    pos, batch = make_batch([4])
    with pytest.raises(ValueError, match=words):
        knn(**{"pos": pos, "batch": batch, "k": 1, "cutoff": 1.0, "num_graphs": 1} | arguments)


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), spare=st.integers(0, 5), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_shared_slots_hold_every_edge_sorted_by_centre(sizes: list[int], spare: int, seed: int):
    pos, batch = make_batch(sizes, seed)
    expected = nearest_by_hand(pos, batch, len(pos), 2.5)
    neighbors, num_missing = radius(
        pos, batch, 2.5, len(expected) + spare, num_graphs=len(sizes), max_num_nodes=max(sizes)
    )
    assert real_edges(neighbors) == expected
    assert num_missing == 0
    assert (neighbors.edge_index[1].diff() >= 0).all()
    assert (neighbors.edge_weight[~neighbors.edges_mask] == 2.5).all()


def test_edges_without_a_slot_are_counted():
    pos, batch = make_batch([6])
    num_edges = len(nearest_by_hand(pos, batch, 6, 9.0))
    neighbors, num_missing = radius(pos, batch, 9.0, num_edges - 7, num_graphs=1)
    assert num_missing == 7
    assert neighbors.edges_mask.all()

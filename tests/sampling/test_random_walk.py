"""Random walks: steps are edges, the same with and without the compiled library, with the probabilities of node2vec."""

import pytest
import torch

from popgeo.native import library
from popgeo.sampling import CompressedGraph
from popgeo.sampling.random_walk import random_walk

#  0 -> 1, 2     1 -> 0, 2     2 -> 0, 1, 3     3 -> 2     4 has no neighbor
EDGES = torch.tensor([[0, 0, 1, 1, 2, 2, 2, 3], [1, 2, 0, 2, 0, 1, 3, 2]])
GRAPH = CompressedGraph.from_edge_index(EDGES, 5, direction="outgoing")


def test_each_step_is_an_edge_and_a_walk_stays_at_a_node_without_neighbors(native):
    nodes, places = random_walk(GRAPH, torch.tensor([4, 3, 0]), 6, p=0.5, q=3.0, seed=1)
    assert nodes[:, 0].tolist() == [4, 3, 0]
    assert nodes[0].tolist() == [4] * 7
    assert places[0].tolist() == [-1] * 6
    assert torch.equal(torch.stack([nodes[1:, :-1], nodes[1:, 1:]]), EDGES[:, places[1:]])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.25, 4.0), (50.0, 0.5)])
def test_walks_are_the_same_with_and_without_the_library(dtype, p, q):
    edges = torch.randint(60, (2, 400), generator=torch.Generator().manual_seed(0))
    graph = CompressedGraph.from_edge_index(edges, 60, direction="outgoing", dtype=dtype)
    start = torch.arange(60).repeat(3)
    first = random_walk(graph, start, 9, p=p, q=q, seed=5)
    with library.without_native():
        for one, other in zip(random_walk(graph, start, 9, p=p, q=q, seed=5), first, strict=True):
            assert torch.equal(one, other)
    assert not torch.equal(random_walk(graph, start, 9, p=p, q=q, seed=6)[0], first[0])


def test_second_steps_have_the_probabilities_of_node2vec(native):
    p, q = 0.5, 4.0
    nodes, _ = random_walk(GRAPH, torch.zeros(6000, dtype=torch.int64), 2, p=p, q=q, seed=0)
    over_two = nodes[nodes[:, 1] == 2, 2]
    assert abs((nodes[:, 1] == 2).float().mean() - 0.5) < 0.03
    # From 0 over 2: back to 0 with weight 1 / p, to 1 (a neighbor of 0) with 1, to 3 with 1 / q.
    weights = torch.tensor([1 / p, 1.0, 0.0, 1 / q])
    assert (over_two.bincount(minlength=4) / len(over_two) - weights / weights.sum()).abs().max() < 0.03


def test_wrong_arguments_are_refused():
    for arguments, words in (({"p": 0.0}, "p is 0.0"), ({"q": 1e9}, "q is 1"), ({"length": -1}, "length is -1")):
        with pytest.raises(ValueError, match=words):
            random_walk(GRAPH, torch.tensor([0]), **{"length": 1, **arguments})
    with pytest.raises(ValueError, match="start contains 5"):
        random_walk(GRAPH, torch.tensor([5]), 1)
    between = CompressedGraph.from_edge_index(torch.tensor([[0], [3]]), (1, 4))
    with pytest.raises(ValueError, match="one kind of node"):
        random_walk(between, torch.tensor([0]), 1)

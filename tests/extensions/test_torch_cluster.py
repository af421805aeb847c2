"""torch_cluster's searches, clusters and samples under their own names. `tests/ops` tests the searches in detail."""

import pytest
import torch
from torch_geometric.nn import pool

SQUARE = torch.tensor([[0.0, 0.0], [0.0, 2.0], [3.0, 2.0], [3.0, 0.0]])
POINTS, CLOUDS = SQUARE.repeat(2, 1), torch.tensor([0, 0, 0, 0, 2, 2, 2, 2])  # cloud 1 has no points


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_searches_stay_in_their_clouds_for_every_type(torch_cluster, dtype):
    x, y = POINTS.to(dtype), torch.tensor([[0, 1], [3, 3]]).to(dtype)
    clouds = CLOUDS, torch.tensor([0, 2])
    assert torch_cluster.knn(x, y, 2, *clouds).tolist() == [[0, 0, 1, 1], [0, 1, 6, 7]]
    assert torch_cluster.radius(x, y, 1, *clouds).tolist() == [[0, 0, 1], [0, 1, 6]]
    assert torch_cluster.nearest(y, x, *clouds[::-1]).tolist() == [0, 6]
    assert torch_cluster.knn_graph(x, 1, CLOUDS).tolist() == [[1, 0, 3, 2, 5, 4, 7, 6], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert torch_cluster.radius_graph(x, 2.5, CLOUDS, flow="target_to_source")[0].tolist() == [*range(8)]
    assert torch_cluster.fps(x, CLOUDS, 0.5, random_start=False).tolist() == [0, 2, 4, 6]
    assert torch_cluster.fps(x, ptr=[0, 4, 8], ratio=torch.tensor([0.25, 0.5]), random_start=False).tolist() == [
        0,
        4,
        6,
    ]


def test_pyg_finds_the_same_neighbors(torch_cluster):
    x = torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
    clouds = torch.arange(200) // 70
    assert torch.equal(pool.knn_graph(x, 5, clouds), torch_cluster.knn_graph(x, 5, clouds))
    ours, of_pyg = (one.radius_graph(x, 0.4, clouds, max_num_neighbors=99) for one in (torch_cluster, pool))
    assert {*zip(*ours.tolist(), strict=True)} == {*zip(*of_pyg.tolist(), strict=True)}


@pytest.mark.parametrize("empty", [True, False])
def test_nothing_is_found_among_no_points(torch_cluster, empty):
    x, y = (POINTS[:0], POINTS) if empty else (POINTS, POINTS[:0])
    assert torch_cluster.knn(x, y, 2).shape == torch_cluster.radius(x, y, 1.0).shape == (2, 0)
    assert torch_cluster.fps(POINTS[:0]).shape == (0,)


def test_a_pair_of_nodes_is_joined_by_its_largest_weight(torch_cluster):
    row, col = torch.tensor([0, 1, 1, 2, 2, 3]), torch.tensor([1, 0, 2, 1, 3, 2])
    weight = torch.tensor([1.0, 1.0, 9.0, 9.0, 1.0, 1.0])
    found = {tuple(torch_cluster.graclus_cluster(row, col, weight, num_nodes=5).tolist()) for _ in range(50)}
    assert found == {(0, 1, 1, 3, 4), (0, 0, 2, 2, 4)}  # by whether an inner or an outer node is the first


@pytest.mark.parametrize("biases", [(1, 1), (0.5, 2.0)])
def test_a_walk_goes_along_edges_and_stays_at_their_end(torch_cluster, biases):
    row, col = torch.tensor([2, 0, 0, 1]), torch.tensor([0, 2, 1, 3])
    start = torch.tensor([0, 1, 2, 3])
    nodes, edges = torch_cluster.random_walk(row, col, start, 6, *biases, return_edge_indices=True)
    sorted_row, sorted_col = torch.tensor([0, 0, 1, 2]), torch.tensor([1, 2, 3, 0])
    for walk, taken in zip(nodes, edges, strict=True):
        for here, there, edge in zip(walk, walk[1:], taken, strict=False):
            assert here == there == 3 if edge < 0 else (sorted_row[edge], sorted_col[edge]) == (here, there)


def test_sampled_edges_belong_to_their_nodes_and_differ(torch_cluster):
    rowptr = torch.tensor([0, 3, 7])
    three = torch_cluster.neighbor_sampler(torch.tensor([1, 0]), rowptr, 3)
    assert len({*three.tolist()}) == 6
    assert {*three[3:].tolist()} == {0, 1, 2}
    assert torch_cluster.neighbor_sampler(torch.tensor([1, 0]), rowptr, 0.5).shape == (4,)
    assert sorted(torch_cluster.neighbor_sampler(torch.tensor([0, 1]), rowptr, 1.0).tolist()) == [*range(7)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda package: package.knn(POINTS, POINTS, 1, CLOUDS[:3], CLOUDS), "got 8 points, but clouds for 3 points"),
        (lambda package: package.radius_graph(POINTS, 1.0, CLOUDS.flip(0)), "must ascend"),
        (lambda package: package.knn_graph(POINTS, 1, flow="up"), "flow is 'up'"),
        (lambda package: package.nearest(POINTS, POINTS[:4], CLOUDS, CLOUDS[:4]), "do not occur in 'batch_y'"),
        (lambda package: package.neighbor_sampler(CLOUDS, torch.tensor([0, 1, 1, 1]), 0), "size 0"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(torch_cluster, call, message):
    with pytest.raises(ValueError, match=message):
        call(torch_cluster)

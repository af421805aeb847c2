"""torch_cluster's searches: real pairs in eager code, and -1 for missing pairs in a compiled model."""

import importlib
import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch_geometric.nn import pool
from torch_geometric.utils import scatter

from popgeo.compat import poptorch

POINTS = torch.tensor([[0.0], [1.0], [5.0], [6.0]])
CLOUDS = torch.tensor([0, 0, 1, 1])


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def test_neighbors_are_those_worked_out_by_hand(torch_cluster):
    query = torch.tensor([[0.9], [5.2]])
    assert torch_cluster.knn(POINTS, query, 1).tolist() == [[0, 1], [1, 2]]
    assert torch_cluster.knn(POINTS, query, 3, CLOUDS, torch.tensor([0, 1])).tolist() == [[0, 0, 1, 1], [1, 0, 2, 3]]
    assert torch_cluster.knn_graph(POINTS, 1, flow="target_to_source").tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert torch_cluster.radius_graph(POINTS, 1.0, loop=False).tolist() == [[1, 0, 3, 2], [0, 1, 2, 3]]
    assert torch_cluster.radius(POINTS, POINTS, 1.0, ignore_same_index=True).tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert torch_cluster.nearest(POINTS, query).tolist() == [0, 0, 1, 1]
    assert torch_cluster.fps(POINTS, CLOUDS, 0.5, random_start=False).tolist() == [0, 2]
    assert torch_cluster.fps(POINTS, ratio=0.5, random_start=False, ptr=torch.tensor([0, 4])).tolist() == [0, 3]


def test_nothing_is_picked_in_a_graph_without_points(torch_cluster):
    assert torch_cluster.fps(POINTS, torch.tensor([0, 0, 2, 2]), 0.5, random_start=False).tolist() == [0, 2]
    assert torch_cluster.fps(POINTS[:0], ptr=[0, 0]).tolist() == []


def test_a_compiled_search_for_farthest_points_asks_for_pointers(torch_cluster):
    search = Calls(lambda points, clouds: torch_cluster.fps(points, clouds, 0.5, random_start=False))
    with pytest.raises(poptorch.Error, match="pass ptr= instead of batch: a list"):
        poptorch.inferenceModel(search)(POINTS, CLOUDS)


def test_a_compiled_model_has_a_slot_for_each_neighbor_that_there_might_be(torch_cluster):
    found = poptorch.inferenceModel(Calls(torch_cluster.radius))(POINTS, POINTS[:1], 1.0)
    assert found.tolist() == [[0, 0, -1, -1], [0, 1, -1, -1]]


SEARCHES = ["fps", "grid_cluster", "knn", "knn_graph", "nearest", "radius", "radius_graph"]


@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_runs_in_a_compiled_model_as_outside_of_it(name, torch_cluster):
    given = {
        "fps": (POINTS, None, 0.5, False),
        "grid_cluster": (POINTS, torch.tensor([2.0])),
        "knn": (POINTS, POINTS, 2),
        "knn_graph": (POINTS, 2),
        "nearest": (POINTS, POINTS + 0.4),
        "radius": (POINTS, POINTS, 1.5),
        "radius_graph": (POINTS, 1.5),
    }[name]
    search = getattr(torch_cluster, name)
    found, expected = poptorch.inferenceModel(Calls(search))(*given), search(*given)
    found = found[:, (found >= 0).all(0)] if found.dim() == 2 else found
    assert found.tolist() == expected.tolist()


def test_whole_numbers_are_points_too(torch_cluster):
    points = torch.tensor([[-1, -1], [-1, 1], [1, 1], [1, -1]])
    assert torch_cluster.radius(points, torch.tensor([[0, 1]]), 1.5).tolist() == [[0, 0], [1, 2]]


@pytest.mark.parametrize("name", ["torch_geometric.nn.pool", "torch_cluster"])
def test_what_a_search_finds_is_gathered_under_whatever_name_a_model_holds_it(name):
    package = importlib.import_module(name)

    class Sums(Calls):
        def forward(self, x, y):
            found = self.function(x, y, 1.5)
            return scatter(x[found[1]], found[0], dim_size=2)

    model, query = Sums(package.radius), torch.tensor([[0.2], [5.1]])
    assert torch.equal(poptorch.inferenceModel(model)(POINTS, query), model(POINTS, query))


def test_a_search_of_the_real_package_is_replaced_while_a_model_is_compiled(monkeypatch):
    package = ModuleType("torch_cluster")
    exec(
        "def knn(x, y, k, batch_x=None):\n    return (y - x.T).abs().topk(k, largest=False).indices.nonzero()",
        vars(package),
    )
    monkeypatch.setitem(sys.modules, "torch_cluster", package)
    held = package.knn
    model = Calls(lambda x, y: held(x, y, 1))
    assert poptorch.inferenceModel(model)(POINTS, torch.tensor([[4.0]])).tolist() == [[0], [2]]
    assert model(POINTS, torch.tensor([[4.0]])).tolist() == [[0, 0]]  # the real package's result, in eager code


@pytest.mark.parametrize("clouds", [([0, 0, 1], None), (CLOUDS[:3], CLOUDS)], ids=["list", "tensor"])
def test_clouds_of_another_number_of_points_are_refused(clouds, torch_cluster):
    with pytest.raises(ValueError, match="got 4 points, but clouds for 3 points"):
        torch_cluster.nearest(POINTS, POINTS, *clouds)


def test_a_cloud_without_points_to_go_to_is_refused(torch_cluster):
    with pytest.raises(ValueError, match="do not occur in 'batch_y'"):
        torch_cluster.nearest(POINTS, POINTS, [0, 0, 1, 1], None)


VOXELS = torch.tensor([[0.0, 0.0], [11.0, 9.0], [2.0, 8.0], [2.0, 2.0]])


@pytest.mark.parametrize(
    ("size", "start", "end", "expected"),
    [
        (5.0, None, None, [0, 5, 3, 0]),
        ([5.0, 10.0], None, None, [0, 2, 0, 0]),
        (5.0, [-5.0, -5.0], [15.0, 10.0], [6, 13, 11, 6]),
    ],
)
def test_voxels_are_counted_by_hand(size, start, end, expected):
    assert pool.voxel_grid(VOXELS, size, start=start, end=end).tolist() == expected


def test_clouds_share_no_voxel_also_in_a_compiled_model():
    clouds = torch.tensor([0, 0, 1, 1])
    expected = [0, 5, 9, 6]
    assert pool.voxel_grid(VOXELS, 5.0, clouds).tolist() == expected
    assert poptorch.inferenceModel(Calls(pool.voxel_grid))(VOXELS, 5.0, clouds).tolist() == expected


@pytest.mark.parametrize(("pos", "size"), [([[0.0]], 0.0), ([[float("nan")]], 1.0), ([[float("inf")]], 1.0)])
def test_voxels_without_a_size_or_a_place_are_refused(pos, size, torch_cluster):
    with pytest.raises(RuntimeError, match="grid_cluster: a"):
        torch_cluster.grid_cluster(torch.tensor(pos), torch.tensor([size]))

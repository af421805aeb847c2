"""torch_cluster's searches under their own names: as many pairs as there are, and -1 inside a compiled model."""

import pytest
import torch
from torch import nn

from popgeo.compat import poptorch, torch_cluster

POINTS = torch.tensor([[0.0], [1.0], [5.0], [6.0]])
CLOUDS = torch.tensor([0, 0, 1, 1])


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def test_neighbors_are_those_worked_out_by_hand():
    query = torch.tensor([[0.9], [5.2]])
    assert torch_cluster.knn(POINTS, query, 1).tolist() == [[0, 1], [1, 2]]
    assert torch_cluster.knn(POINTS, query, 3, CLOUDS, torch.tensor([0, 1])).tolist() == [[0, 0, 1, 1], [1, 0, 2, 3]]
    assert torch_cluster.knn_graph(POINTS, 1, flow="target_to_source").tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert torch_cluster.radius_graph(POINTS, 1.0, loop=False).tolist() == [[1, 0, 3, 2], [0, 1, 2, 3]]
    assert torch_cluster.radius(POINTS, POINTS, 1.0, ignore_same_index=True).tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert torch_cluster.nearest(POINTS, query).tolist() == [0, 0, 1, 1]
    assert torch_cluster.fps(POINTS, CLOUDS, 0.5, random_start=False).tolist() == [0, 2]
    assert torch_cluster.fps(POINTS, ratio=0.5, random_start=False, ptr=torch.tensor([0, 4])).tolist() == [0, 3]


def test_a_compiled_model_has_a_slot_for_each_neighbor_that_there_might_be():
    found = poptorch.inferenceModel(Calls(torch_cluster.radius))(POINTS, POINTS[:1], 1.0)
    assert found.tolist() == [[0, 0, -1, -1], [0, 1, -1, -1]]


def test_whole_numbers_are_points_too():
    points = torch.tensor([[-1, -1], [-1, 1], [1, 1], [1, -1]])
    assert torch_cluster.radius(points, torch.tensor([[0, 1]]), 1.5).tolist() == [[0, 0], [1, 2]]


def test_a_cloud_without_points_to_go_to_is_refused():
    with pytest.raises(ValueError, match="do not occur in 'batch_y'"):
        torch_cluster.nearest(POINTS, POINTS, [0, 0, 1, 1], None)

"""Searches among points: neighbors and farthest points equal all distances, for any type, dimension and thread."""

import math

import pytest
import torch

from popgeo.native.library import without_native
from popgeo.ops.point_search import farthest_points, near_points


def points(num_points: int, dims: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    drawn = torch.randn(num_points, dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(dtype)


def test_neighbors_are_those_worked_out_by_hand(native):
    x, y = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]), torch.tensor([[0.0, 0.0], [3.0, 3.0]])
    assert near_points(x, y, 2).tolist() == [[0, 0, 1, 1], [0, 2, 1, 2]]
    assert near_points(x, y, 9, r=1.0).tolist() == [[0, 0, 1], [0, 2, 1]]
    assert near_points(x, x, 1, skip_same=True).tolist() == [[0, 1, 2], [2, 2, 0]]
    assert near_points(2 * x, y, 1, cosine=True).tolist() == [[0, 1], [0, 1]]
    assert near_points(x[:0], y, 2).shape == near_points(x, y, 0).shape == (2, 0)


def test_of_equally_distant_points_the_first_ones_are_found(native):
    x = torch.tensor([[1.0], [-1.0]]).repeat(40, 1)
    assert near_points(x, torch.zeros(1, 1), 5).tolist() == [[0] * 5, [0, 1, 2, 3, 4]]
    assert near_points(x, torch.full((1, 1), 0.5), 3).tolist() == [[0] * 3, [0, 2, 4]]
    assert farthest_points(x, torch.tensor([0, 80]), 3 / 80, random_start=False).tolist() == [0, 1, 0]


@pytest.mark.parametrize("dims", [1, 3, 13])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("choices", [{}, {"r": 1.0, "skip_same": True}, {"cosine": True, "r": 0.4}], ids=str)
def test_a_search_equals_all_distances_within_each_graph(dims, dtype, choices):
    x, y = points(400, dims, 1, dtype), points(150, dims, 2, dtype)
    ptr_x, ptr_y = torch.tensor([0, 0, 180, 183, 400]), torch.tensor([0, 40, 100, 100, 150])
    found = near_points(x, y, 7, ptr_x, ptr_y, **choices)
    with without_native():
        assert torch.equal(found, near_points(x, y, 7, ptr_x, ptr_y, **choices))
    assert found.shape[1] > 0 or dtype is torch.int64 or dims == 13


def test_the_number_of_threads_changes_nothing():
    x, ptr = points(3000, 3), torch.tensor([0, 900, 3000])
    before = torch.get_num_threads()
    try:
        found = []
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            found.append((near_points(x, x, 6, ptr, ptr), farthest_points(x, ptr, 0.01, random_start=False)))
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *found))


def test_points_that_are_not_finite_have_no_neighbors(native):
    x = points(60, 3)
    x[7, 1], x[40, 0] = math.nan, math.inf
    found = near_points(x, x, 60)
    assert {*found[0].tolist()} == {*found[1].tolist()} == {*range(60)} - {7, 40}
    assert found.shape[1] == 58 * 58


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_each_next_point_is_the_farthest_from_all_before_it(native, dtype):
    x, ptr = points(300, 2, 3, dtype), torch.tensor([0, 100, 100, 300])
    chosen = farthest_points(x, ptr, torch.tensor([0.1, 0.5, 0.05]), random_start=True)
    for cloud, rows in ((x[:100], chosen[:10]), (x[100:], chosen[10:] - 100)):
        assert len(rows) == 10
        for turn in range(1, 10):
            distances = (cloud.double()[:, None] - cloud.double()[rows[:turn]]).norm(dim=2).amin(1)
            assert distances[rows[turn]] == pytest.approx(float(distances.max()), rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(2, 3), torch.ones(2, 2), 1), "x has 3 dimensions and y has 2"),
        ((torch.ones(2, 3), torch.ones(2, 3), -1), "number of neighbors is -1"),
        ((torch.ones(2, 3), torch.ones(2, 3), 1, torch.tensor([0, 3])), "must ascend from 0 to 2"),
        ((torch.ones(2, 3), torch.ones(2, 3), 1, None, torch.tensor([0, 2, 1, 2])), "ptr_y is"),
    ],
)
def test_a_search_that_cannot_be_meant_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        near_points(*arguments)
    with pytest.raises(ValueError, match="fps got ratio"):
        farthest_points(torch.ones(2, 3), torch.tensor([0, 2]), 1.5)

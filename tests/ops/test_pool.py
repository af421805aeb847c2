"""Claims about pooling over a fixed number of graphs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from popgeo.ops import global_add_pool, global_max_pool, global_mean_pool, global_softmax, scatter
from tests.support.denormals import DenormalsMade

REFERENCES = [
    (global_add_pool, lambda rows: rows.sum(0)),
    (global_mean_pool, lambda rows: rows.mean(0)),
    (global_max_pool, lambda rows: rows.amax(0)),
]


@pytest.mark.parametrize(("pool", "reference"), REFERENCES)
@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_each_row_is_of_its_graphs_nodes_and_zero_without_any(pool, reference, sizes, seed):
    x = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(seed))
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    expected = [reference(rows) if len(rows) else torch.zeros(3) for rows in x.split(sizes)]
    assert_close(pool(x, batch, len(sizes)), torch.stack(expected))


def test_softmax_sums_to_one_in_each_graph_and_survives_large_scores():
    x, batch = torch.tensor([[1e4], [1e4 - 1], [-1e4]]), torch.tensor([0, 0, 2])
    weight = global_softmax(x, batch, 3)
    assert_close(weight.flatten(), torch.tensor([0.7311, 0.2689, 1.0]), rtol=1e-3, atol=1e-3)
    assert_close(global_add_pool(weight, batch, 3).flatten(), torch.tensor([1.0, 0.0, 1.0]))


def test_softmax_makes_no_denormal_number_of_scores_far_below_the_largest():
    x, batch = torch.tensor([[0.0], [-59.0], [-88.0], [-95.0]]).requires_grad_(), torch.zeros(4, dtype=torch.long)
    with DenormalsMade() as made:
        weight = global_softmax(x, batch, 1)
        torch.autograd.grad(weight.square().sum(), x)
    assert made.found == []
    assert weight[1] > 0
    assert weight[2:].tolist() == [[0.0], [0.0]]


def test_softmax_has_the_right_gradient_of_both_orders():
    x, batch = torch.randn(4, 2, dtype=torch.float64, requires_grad=True), torch.tensor([0, 0, 1, 1])
    assert torch.autograd.gradcheck(lambda x: global_softmax(x, batch, 3), x)
    assert torch.autograd.gradgradcheck(lambda x: global_softmax(x, batch, 3), x)


def test_a_graph_beyond_the_last_is_refused():
    with pytest.raises(ValueError, match="is 2; allowed are 0 to 1"):
        global_add_pool(torch.ones(2, 1), torch.tensor([0, 2]), 2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_a_mean_of_whole_numbers_is_a_floating_point_number_as_in_pyg(dtype):
    x, batch = torch.tensor([[1], [0], [0], [1]]).to(dtype), torch.tensor([0, 0, 0, 1])
    torch.testing.assert_close(global_mean_pool(x, batch, 3), torch.tensor([[1 / 3], [1.0], [0.0]]))


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
@pytest.mark.parametrize("reduce", ["min", "max"])
def test_what_has_no_order_has_no_extreme(dtype, reduce):
    with pytest.raises(ValueError, match=f"src has dtype {dtype}, which has no largest entry"):
        scatter(torch.ones(2, 1, dtype=dtype), torch.tensor([0, 0]), dim=0, dim_size=1, reduce=reduce)


def test_a_mean_of_complex_numbers_is_one():
    mean = scatter(torch.tensor([[1 + 2j], [2 + 2j]]), torch.tensor([0, 0]), dim=0, dim_size=1, reduce="mean")
    assert mean.tolist() == [[1.5 + 2j]]

"""A check of many tensors says whether one of them is farther from its earlier values than its limit."""

import pytest
import torch

from popgeo.ops.near_tensors import near

SIZES = (1, 15, 16, 100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_one_tensor_of_many_that_moves_past_its_limit_is_seen(native, dtype, size):
    tensors = [torch.randn(size, dtype=dtype) for _ in range(3)]
    is_near = near(tensors, [one.clone() for one in tensors], [0.5] * 3)
    step = torch.randn(size, dtype=dtype)
    step /= step.norm()
    tensors[1].add_(0.49 * step)
    assert is_near()
    tensors[1].add_(0.02 * step)
    assert not is_near()


def test_without_a_limit_tensors_of_every_type_must_be_equal(native):
    for tensor in (torch.zeros(3), torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.bool)):
        is_near = near([torch.ones(2), tensor], [torch.ones(2), tensor.clone()], [1.0, 0.0])
        assert is_near()
        tensor[2] = 1e-30 if tensor.is_floating_point() else 1
        assert not is_near()


def test_numbers_that_are_not_finite_are_near_unless_they_are_infinite(native):
    weight = torch.ones(4)
    is_near = near([weight], [weight.clone()], [0.5])
    weight[0] = torch.nan
    assert is_near()
    weight[0] = torch.inf
    assert not is_near()


def test_tensors_that_are_not_contiguous_are_compared_too(native):
    weight = torch.ones(4, 4)
    is_near = near([weight.t(), weight[:, :1]], [torch.ones(4, 4), torch.ones(4, 1)], [3.0, 0.5])
    assert is_near()
    weight[0, 0] = 2.0
    assert not is_near()

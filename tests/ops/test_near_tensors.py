"""A check of many tensors says whether one of them is farther from its earlier values than its limit."""

import pytest
import torch

from popgeo.ops import near_tensors, sum_on_device
from popgeo.ops.near_tensors import near
from tests.support.fake_cuda import FakeCuda, NoWaits

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


def test_on_a_gpu_one_answer_counts_for_all_tensors_and_may_be_read_two_calls_later(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sum_on_device, "serves", torch.Tensor.is_floating_point)
    monkeypatch.setattr(near_tensors, "cuda", fake := FakeCuda())
    weights = [torch.ones(3), torch.ones(2, 2, dtype=torch.float64), torch.ones(0)]
    tensors = [*weights, torch.zeros(3, dtype=torch.bool), torch.zeros(2, dtype=torch.long)]
    is_near = near(tensors, [one.clone() for one in tensors], [0.5, 0.5, 0.5, 0.0, 0.0])
    for one, little, much in ((0, 0.28, 0.3), (1, 0.24, 0.26), (3, 0, 1), (4, 0, 1)):
        before = tensors[one].clone()
        tensors[one].copy_(before + little)
        assert is_near()
        tensors[one].copy_(before + much)
        assert not is_near()
        assert [is_near(False) for _ in range(3)] == [True, True, False]
        tensors[one].copy_(before)
        assert [is_near(False) for _ in range(3)] == [False, False, True]
        assert is_near(False)
    weights[0][0] = torch.nan
    assert is_near()
    weights[1][0] = torch.inf
    fake.log.clear()
    with NoWaits():
        assert [is_near(False) for _ in range(3)] == [True, True, False]
    after = [line.partition(" after")[0] for line in fake.log if "after" in line]
    waited = [line.removeprefix("host waits for ") for line in fake.log if "host waits" in line]
    assert waited == after  # each call waits for the event of the call before the last one, and then uses it again
    assert len({*waited}) == 2
    assert not is_near()

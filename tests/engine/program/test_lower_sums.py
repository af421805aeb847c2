"""Reductions have the bits that torch computes with one thread."""

import pytest
import torch

from tests.support.chains import native
from tests.support.native_calls import calls_of, has_torchs_bits

pytestmark = native
SIZES = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 131)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_and_means_of_any_shape_layout_and_dimensions(dtype, seed):
    draw = torch.Generator().manual_seed(seed)

    def below(n: int) -> int:
        return int(torch.randint(0, n, (), generator=draw))

    for _ in range(30):
        count = below(3) + 1
        shape = [SIZES[below(len(SIZES))] for _ in range(count)]
        x = torch.randn(shape, generator=draw, dtype=dtype) * 10 ** (below(5) - 2)
        x = x[..., ::2] if below(4) == 0 else x.transpose(0, -1) if below(3) == 0 else x
        x = x[:1].expand(shape[0], *x.shape[1:]) if below(6) == 0 and x.shape == tuple(shape) else x
        dims, keeps = torch.randperm(count, generator=draw)[: below(count) + 1].tolist(), bool(below(2))
        assert has_torchs_bits(lambda x, d=dims, k=keeps: x.sum(d, keepdim=k), x), (x.shape, x.stride(), dims)
        assert has_torchs_bits(lambda x, d=dims, k=keeps: x.mean(d, keepdim=k), x), (x.shape, x.stride(), dims)
        assert has_torchs_bits(torch.sum, x), (x.shape, x.stride())


def test_long_sums_pass_all_levels():
    for size in (2**12, 2**16 + 3, 2**19):
        x = torch.randn(size)
        assert has_torchs_bits(torch.sum, x)
        assert has_torchs_bits(lambda x: x.sum(0), x.view(-1, 1).expand(-1, 3))
    assert has_torchs_bits(lambda x: x.sum(0), torch.randn(5000, 70))
    assert has_torchs_bits(lambda x: x.sum(1), torch.randn(70, 5000))


def test_empty_sums_and_means():
    for function in (torch.sum, torch.mean, lambda x: x.sum(0), lambda x: x.mean(0), lambda x: x.sum(1)):
        assert has_torchs_bits(function, torch.ones(0, 3))
    assert has_torchs_bits(torch.sum, torch.tensor(-0.0))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32])
def test_whole_numbers_truth_values_and_extremes(dtype):
    x = torch.randint(-9, 9, (9, 70, 5)).to(dtype)
    functions = [torch.any, torch.all, lambda x: x.any(1), lambda x: x.all(-1, keepdim=True), lambda x: x.any((0, 2))]
    functions += [torch.amax, torch.min, lambda x: x.amax(1), lambda x: x.amin((0, 2), keepdim=True)]
    functions += [torch.sum, lambda x: x.sum(1), lambda x: x.sum((0, 2), keepdim=True), lambda x: x.view(9, -1).sum(1)]
    for function in functions:
        for given in (x, x.transpose(0, 1).contiguous().transpose(0, 1), x == 99, x != 99):
            assert has_torchs_bits(function, given), given.dtype


def test_nan_is_the_largest_and_the_smallest():
    x = torch.randn(3, 100)
    x[1, 50] = float("nan")
    assert has_torchs_bits(lambda x: x.amax(1), x)
    assert has_torchs_bits(lambda x: x.amin(0), x)


def test_running_sums():
    for dtype in (torch.float32, torch.float64, torch.int64):
        x = (torch.randn(7, 5, 9) * 100).to(dtype)
        for dim in range(3):
            assert has_torchs_bits(lambda x, dim=dim: x.cumsum(dim), x)


def test_other_reductions_are_left_to_torch():
    x = torch.rand(3, 4)
    assert calls_of(lambda x: x.sum(0, dtype=torch.float64), x) == [None]
    assert calls_of(lambda x: x.cumsum(0), x.int()) == [None]
    assert calls_of(lambda x: x.sum(), x.half()) == [None]
    assert calls_of(lambda x: x.prod(), x) == [None]

"""Reductions have the bits that torch computes with one thread."""

import math

import pytest
import torch

from tests.support.chains import native
from tests.support.native_calls import has_torchs_bits, is_left_to_torch, layouts_of

pytestmark = native
SIZES = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 131)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_and_means_of_any_shape_layout_and_dimensions(dtype):
    draw = torch.Generator().manual_seed(0)

    def below(n: int) -> int:
        return int(torch.randint(0, n, (), generator=draw))

    for _ in range(150):
        count = below(3) + 1
        shape = [SIZES[below(len(SIZES))] for _ in range(count)]
        x = torch.randn(shape, generator=draw, dtype=dtype) * 10 ** (below(5) - 2)
        x = layouts_of(x)[below(4)] if math.prod(shape) < 20000 else x
        dims, keeps = torch.randperm(count, generator=draw)[: below(count + 1)].tolist(), bool(below(2))
        assert has_torchs_bits("aten.sum.dim_IntList", x, dims, keeps), (x.shape, x.stride(), dims)
        assert has_torchs_bits("aten.mean.dim", x, dims, keeps), (x.shape, x.stride(), dims)


def test_long_sums_pass_all_levels():
    for size in (2**12, 2**16 + 3, 2**19):
        x = torch.randn(size)
        assert has_torchs_bits("aten.sum.default", x)
        assert has_torchs_bits("aten.mean.default", x[::2])
        assert has_torchs_bits("aten.sum.dim_IntList", x.view(-1, 1).expand(-1, 3), [0])
    assert has_torchs_bits("aten.sum.dim_IntList", torch.full((1,), 0.1).expand(3001, 7), [0])
    assert has_torchs_bits("aten.sum.dim_IntList", torch.randn(5000, 70), [0])
    assert has_torchs_bits("aten.sum.dim_IntList", torch.randn(70, 5000), [1])


def test_sums_of_nothing_and_of_a_negative_zero():
    for dtype in (torch.float32, torch.float64):
        for shape, dims in (((0, 3), [0]), ((3, 0), [1]), ((0,), [])):
            assert has_torchs_bits("aten.sum.dim_IntList", torch.ones(shape, dtype=dtype), dims)
            assert has_torchs_bits("aten.mean.dim", torch.ones(shape, dtype=dtype), dims)
        assert has_torchs_bits("aten.sum.default", torch.tensor(-0.0, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32, torch.float64])
def test_whole_numbers_truth_values_and_extremes(dtype):
    x = torch.randint(-9, 9, (9, 70, 5)).to(dtype)
    for given in (*layouts_of(x), x.bool(), (x == 99), x != 99):
        for dims in ([0], [1], [-1], [0, 2], [0, 1, 2]):
            for name in ("sum.dim_IntList", "any.dims", "all.dims", "amax.default", "amin.default"):
                assert has_torchs_bits(f"aten.{name}", given, dims, dims == [1]), (name, dims)
        for name in ("sum", "any", "all", "max", "min"):
            assert has_torchs_bits(f"aten.{name}.default", given), name
    assert has_torchs_bits("aten.any.dim", x, 1)
    assert has_torchs_bits("aten.all.dim", x[:0], 0)


def test_nan_is_the_largest_and_the_smallest():
    x = torch.randn(3, 100)
    x[1, 50] = float("nan")
    for name in ("amax", "amin"):
        assert has_torchs_bits(f"aten.{name}.default", x, [0])
        assert has_torchs_bits(f"aten.{name}.default", x, [1])


def test_running_sums():
    for dtype in (torch.float32, torch.float64, torch.int64):
        for x in layouts_of((torch.randn(7, 5, 9) * 100).to(dtype)):
            for dim in (0, 1, -1):
                assert has_torchs_bits("aten.cumsum.default", x, dim)


def test_other_reductions_are_left_to_torch():
    x = torch.rand(3, 4)
    assert is_left_to_torch("aten.sum.dim_IntList", x, [0], dtype=torch.float64)
    assert is_left_to_torch("aten.sum.default", x.half())
    assert is_left_to_torch("aten.cumsum.default", x.int(), 0)
    assert is_left_to_torch("aten.prod.default", x)
    assert is_left_to_torch("aten.sum.dim_IntList", x, [0], result=x[0])

"""Copies, conversions and fills have torch's bits."""

import pytest
import torch

from tests.support.chains import native
from tests.support.native_calls import has_torchs_bits, is_left_to_torch, layouts_of

pytestmark = native
TYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)


@pytest.mark.parametrize("dtype", TYPES)
def test_moved_elements_have_torchs_bits(dtype):
    for x in layouts_of(torch.arange(-7, 53).view(4, 3, 5).to(dtype)):
        assert has_torchs_bits("aten.clone.default", x)
        assert has_torchs_bits("aten.clone.default", x, memory_format=torch.contiguous_format)
        assert has_torchs_bits("aten.cat.default", [x, x[:, :1], torch.empty(0, dtype=dtype), x], 1)
        assert has_torchs_bits("aten.cat.default", [x, x.double()], -1)
        assert has_torchs_bits("aten.stack.default", [x, x, x], 2)
        assert has_torchs_bits("aten.flip.default", x, [0, -1])
        assert has_torchs_bits("aten.repeat.default", x, [2, 1, 3, 2])
        assert has_torchs_bits("aten.constant_pad_nd.default", x, [1, 2, -1, 0, 0, 1], 7)
        assert has_torchs_bits("aten.select_backward.default", x, [4, 6, 3, 5], 1, -2)
        assert has_torchs_bits("aten.slice_backward.default", x, [4, 7, 5], 1, 1, 2**63 - 1, 2)
        assert has_torchs_bits("aten.select_scatter.default", x, x[:, 0], 1, 2)
        assert has_torchs_bits("aten.slice_scatter.default", x, x[:2], 0, 1, 3)
        assert has_torchs_bits("aten.copy_.default", x.clone(), x[:1, 0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8, torch.int16, torch.complex64])
def test_elements_of_any_type_are_moved(dtype):
    for x in layouts_of(torch.arange(24).view(4, 6).to(dtype)):
        bits = {1: torch.uint8, 2: torch.int16, 8: torch.int64}[x.itemsize]
        if dtype is not torch.complex64:
            assert has_torchs_bits("aten.cat.default", [x, x])
        assert not is_left_to_torch("aten.flip.default", x, [1])
        assert has_torchs_bits("aten.clone.default", x.contiguous().view(bits).t())


def test_types_are_converted_as_torch_does():
    x = torch.tensor([float("nan"), float("inf"), 3e9, -0.0, 0.4, -1.7, 16777217.0, 1e-300], dtype=torch.float64)
    for first in TYPES:
        for second in TYPES:
            is_defined = first.is_floating_point and (second.is_floating_point or second is torch.bool)
            for given in layouts_of((x if is_defined else x[3:]).to(first)):
                assert has_torchs_bits("aten._to_copy.default", given, dtype=second), (first, second)
    for second in TYPES:
        assert has_torchs_bits(
            "aten._to_copy.default", torch.tensor([2**62 + 1, -(2**53) - 1, 2**31 + 5]), dtype=second
        )


@pytest.mark.parametrize("dtype", TYPES)
def test_new_tensors_are_filled(dtype):
    for x in layouts_of(torch.ones(3, 5, dtype=dtype)):
        for name in ("zeros_like", "ones_like"):
            assert has_torchs_bits(f"aten.{name}.default", x)
        assert has_torchs_bits("aten.full_like.default", x, 3.7)
        assert has_torchs_bits("aten.new_full.default", x, [4, 2], 1)
    assert has_torchs_bits("aten.full.default", [2, 3], 0.1, dtype=dtype)
    assert has_torchs_bits("aten.zeros.default", [2, 3], dtype=dtype)
    for name, value in (("fill_.Scalar", 0.1), ("fill_.Tensor", torch.tensor(2.5))):
        assert has_torchs_bits(f"aten.{name}", torch.ones(5, 4, dtype=dtype)[:, ::2], value)
    assert has_torchs_bits("aten.zero_.default", torch.ones(5, 4, dtype=dtype).t())


def test_a_copy_with_a_mark_or_between_rare_types_or_within_memory_is_left_to_torch():
    x = torch.ones(6)
    assert is_left_to_torch("aten.clone.default", torch.ones(2, dtype=torch.complex64).conj())
    assert is_left_to_torch("aten.clone.default", torch.ones(2, dtype=torch.complex128))
    assert is_left_to_torch("aten._to_copy.default", x.half(), dtype=torch.float32)
    assert is_left_to_torch("aten.copy_.default", x[1:], x[:-1])
    assert is_left_to_torch("aten.cat.default", [x[:3], x[3:]], result=x)

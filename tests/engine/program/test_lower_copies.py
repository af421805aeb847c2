"""Copies, conversions and fills have torch's bits."""

import pytest
import torch
from torch import Tensor

from tests.support.chains import native
from tests.support.native_calls import calls_of, has_torchs_bits

pytestmark = native
ATEN = torch.ops.aten
TYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)
MOVES = {
    "clone": lambda x: x.clone(), "contiguous": lambda x: x.transpose(0, 2).contiguous(),
    "cat": lambda x: torch.cat([x, x[:, :1], x], 1), "stack": lambda x: torch.stack([x, x.flip(0)], 2),
    "flip": lambda x: x.flip(0, 2), "repeat": lambda x: x.repeat(2, 1, 3, 2), "pad": lambda x: torch.nn.functional.pad(x, (1, 2, -1, 0, 0, 1)),
    "select_backward": lambda x: ATEN.select_backward(x[:, 1], [4, 3, 5], 1, -1),
    "slice_backward": lambda x: ATEN.slice_backward(x[:, :2], [4, 5, 5], 1, 1, 5, 2),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 0], 1, 2),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:2], 0, 1, 3),
    "copy_": lambda x: x.clone().copy_(x[:1]), "zero_": lambda x: x.clone().zero_(), "ones_like": torch.ones_like,
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_moved_elements_have_torchs_bits(name):
    for dtype in TYPES:
        x = torch.arange(-7, 53).to(dtype)
        for given in (x.view(4, 3, 5), x.view(5, 3, 4).permute(2, 1, 0), x.view(4, 15)[:, ::2][:, :5].unsqueeze(1).expand(4, 3, 5)):
            assert has_torchs_bits(MOVES[name], given), dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint8, torch.int16, torch.complex64])
def test_elements_of_any_type_are_moved(dtype):
    x = torch.arange(24).to(dtype).view(4, 6)
    for function in (torch.clone, lambda x: torch.cat([x, x]), lambda x: torch.stack([x, x], 1), lambda x: x.flip(1)):
        assert all(call is not None for call in calls_of(function, x))
    assert has_torchs_bits(lambda x: x.t().contiguous().view(torch.int16), x.view(torch.int16))


def test_types_are_converted_as_torch_does():
    x = torch.tensor([float("nan"), float("inf"), -0.0, 0.4, -1.7, 3e9, 16777217.0, 1e-300], dtype=torch.float64)
    for first in TYPES:
        given = x.to(first) if first.is_floating_point else x[2:5].to(first)
        for second in TYPES:
            whole = given if second.is_floating_point or second is torch.bool else given[2:5]
            assert has_torchs_bits(lambda x, second=second: x.to(second).clone(), whole), (first, second)
    large = torch.tensor([2**62 + 1, -(2**53) - 1, 2**31 + 5])
    for second in TYPES:
        assert has_torchs_bits(lambda x, second=second: x.to(second).clone(), large)


def test_new_tensors_are_filled():
    def function(x: Tensor) -> Tensor:
        parts = [torch.zeros_like(x), torch.full_like(x, 0.1), x.new_ones(4), x.new_full((4,), -3)]
        return torch.cat([*parts, torch.empty_like(x).fill_(7), torch.empty_like(x).fill_(x[1])])

    assert has_torchs_bits(function, torch.rand(4))
    assert has_torchs_bits(function, torch.rand(4, dtype=torch.float64))


def test_a_copy_with_a_mark_or_of_sixteen_bytes_is_left_to_torch():
    assert calls_of(lambda x: x.conj().clone(), torch.ones(2, dtype=torch.complex64)) in ([None], [None, None])
    assert calls_of(torch.clone, torch.ones(2, dtype=torch.complex128)) == [None]
    assert calls_of(lambda x: x.float(), torch.ones(2, dtype=torch.float16)) == [None]
    assert calls_of(lambda x: x[1:].copy_(x[:-1]), torch.ones(5)) == [None]  # partly the same memory

"""Operations by element have torch's bits for all types and layouts, or are left to torch."""

import pytest
import torch
from torch import Tensor

from popgeo.capture.op_graph import Number
from tests.support.chains import native
from tests.support.native_calls import Single, has_torchs_bits, is_left_to_torch, layouts_of, run

pytestmark = native
FLOATS, INTEGERS = (torch.float32, torch.float64), (torch.int64, torch.int32)
TYPES = (*FLOATS, *INTEGERS, torch.bool)
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 1e-42])


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return numbers of a type; a third of the floats are special ones."""
    draw = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(-3, 4, shape, generator=draw).to(dtype)
    x = torch.randn(shape, generator=draw, dtype=dtype)
    special = SPECIAL[torch.randint(0, len(SPECIAL), shape, generator=draw)].to(dtype)
    return torch.where(torch.rand(shape, generator=draw) < 0.3, special, x)


ONE = {
    "neg.default": (*FLOATS, *INTEGERS), "abs.default": (*FLOATS, *INTEGERS), "sign.default": (*FLOATS, *INTEGERS),
    "square.default": (*FLOATS, *INTEGERS), "relu.default": (*FLOATS, *INTEGERS), "bitwise_not.default": TYPES[2:],
    "rsqrt.default": TYPES, "reciprocal.default": TYPES, "isnan.default": TYPES, "logical_not.default": TYPES,
    "neg_.default": FLOATS, "relu_.default": INTEGERS, "logical_not_.default": TYPES,
}  # fmt: skip
TWO = {
    "add": TYPES, "sub": TYPES[:-1], "rsub": TYPES[:-1], "mul": TYPES, "div": TYPES, "eq": TYPES, "ne": TYPES,
    "lt": TYPES, "le": TYPES, "gt": TYPES, "ge": TYPES, "bitwise_and": TYPES[2:], "bitwise_or": TYPES[2:],
    "bitwise_xor": TYPES[2:], "add_": FLOATS, "mul_": FLOATS, "sub_": INTEGERS, "le_": TYPES[:-1],
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_an_operation_of_one_tensor_has_torchs_bits(name):
    for dtype in ONE[name]:
        for x in layouts_of(numbers((5, 3, 67), dtype))[: 3 if "_." in name else 4]:
            assert has_torchs_bits(f"aten.{name}", x), (dtype, x.stride())


@pytest.mark.parametrize("name", TWO)
def test_an_operation_of_two_tensors_has_torchs_bits_for_all_types_layouts_and_broadcasts(name):
    for k, first in enumerate(TWO[name]):
        for second in TWO[name]:
            x, y = (
                layouts_of(numbers((5, 3, 67), first))[k % 3],
                layouts_of(numbers((5, 3, 67), second, 1))[(k + 1) % 4],
            )
            for other in (y, y[:1, :, :1], y[2, 1, 3]):
                assert has_torchs_bits(f"aten.{name}.Tensor", x, other), (first, second, other.shape)
        assert has_torchs_bits(f"aten.{name}.Scalar", numbers((70,), first), 2), first


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor", "logical_or_"])
def test_truth_values_of_any_types(name):
    for first in TYPES:
        for second in TYPES:
            assert has_torchs_bits(f"aten.{name}.default", numbers((3, 70), first), numbers((70,), second))


def test_a_sum_with_a_factor_wraps_around_as_torchs():
    x, y = (torch.tensor([2**62, -5, 2**63 - 1]) + k for k in (0, -1))
    for name in ("add", "sub", "rsub"):
        for alpha in (-1, 2, 3):
            assert has_torchs_bits(f"aten.{name}.Tensor", x, y, alpha=alpha)
        assert has_torchs_bits(f"aten.{name}.Tensor", x.double(), y.double(), alpha=-1)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_bounds_powers_and_selections(dtype):
    for x in layouts_of(numbers((5, 3, 67), dtype)):
        y, mask = numbers((67,), dtype, 1), numbers((5, 1, 67), torch.bool)
        for low, high in ((-1, 2), (None, 1), (0, None), (2, -2)):
            assert has_torchs_bits("aten.clamp.default", x, low, high)
        assert has_torchs_bits("aten.clamp_min.default", x, 1)
        for exponent in (0, 1, 2, 3) + ((-1, -0.5, 2.0) if dtype.is_floating_point else ()):
            assert has_torchs_bits("aten.pow.Tensor_Scalar", x, exponent)
        assert has_torchs_bits("aten.where.self", mask, x, y)
        assert has_torchs_bits("aten.where.self", mask, x.double(), y.to(torch.int32))
        assert has_torchs_bits("aten.masked_fill.Scalar", x, mask, 2)
        assert has_torchs_bits("aten.masked_fill.Tensor", x, mask, y[0])
        if dtype.is_floating_point:
            assert has_torchs_bits("aten.threshold.default", x, 1, -7.1)
            assert has_torchs_bits("aten.threshold_backward.default", y.expand(5, 3, 67), x, 1)


def test_extremes_have_torchs_bits_and_nan_wins():
    for dtype in (torch.float64, torch.int64):
        # Of zeros with both signs, torch returns one or the other.
        x, y = (torch.where(one == 0, 1, one) for one in (numbers((5, 67), dtype), numbers((5, 67), dtype, 1)))
        assert has_torchs_bits("aten.maximum.default", x, y)
        assert has_torchs_bits("aten.minimum.default", x, y)


def test_large_and_empty_operands_and_many_dimensions():
    x = numbers((700, 600), torch.float64)
    assert has_torchs_bits("aten.mul.Tensor", x, x.t().reshape(600, 700).t())
    assert has_torchs_bits("aten.mul.Tensor", torch.ones(0, 3), torch.ones(3))
    shape = (2, 1, 3, 2, 1, 3, 2)
    x, y = numbers(shape, torch.float32), numbers(shape[::-1], torch.float32).permute(6, 5, 4, 3, 2, 1, 0)
    assert has_torchs_bits("aten.mul.Tensor", x, y)


def test_what_torch_computes_in_its_own_way_is_left_to_torch():
    x = torch.rand(5)
    assert is_left_to_torch("aten.sqrt.default", x)
    assert is_left_to_torch("aten.exp.default", x)
    assert is_left_to_torch("aten.pow.Tensor_Scalar", x, 0.5)
    assert is_left_to_torch("aten.add.Tensor", x, x, alpha=0.3)
    assert is_left_to_torch("aten.div.Tensor_mode", x, x, rounding_mode="floor")
    assert is_left_to_torch("aten.clamp.default", x, float("nan"))
    assert is_left_to_torch("aten.mul.Tensor", x.bfloat16(), x.bfloat16())
    assert is_left_to_torch("aten.mul.Tensor", x.to(torch.complex64), x)
    assert is_left_to_torch("aten.add.Tensor", torch.ones(2, dtype=torch.complex64).conj().imag, x[:2])


def test_a_result_may_lie_exactly_over_an_operand_but_not_partly():
    memory, ones = torch.arange(10.0), torch.ones(5)
    assert run(Single("aten.add.Tensor", memory[:5], ones, result=memory[:5]).call()) == 0
    assert memory.tolist() == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9]
    assert is_left_to_torch("aten.add.Tensor", memory[:5], ones, result=memory[2:7])
    assert is_left_to_torch("aten.add.Tensor", ones, ones, result=torch.zeros(1).expand(5))


def test_an_address_that_is_not_aligned_is_reported_and_nothing_is_written():
    x, result = torch.ones(5), torch.zeros(5)
    call = Single("aten.add.Tensor", x, x, result=result).call()
    call.words[call.words == x.data_ptr()] += 1
    assert run(call) != 0
    assert result.tolist() == [0] * 5


def test_a_changing_number_is_read_at_each_run():
    x = torch.tensor([1.0, 3.0])
    single = Single("aten.mul.Scalar", x, Number(3, 2.0), result=torch.zeros(2))
    call = single.call()
    ((array, index, slot),) = call.numbers
    assert slot == 3
    for number in (2.0, 0.1):
        array[index] = number
        assert run(call) == 0
        assert torch.equal(single.result, x * number)


def test_values_without_a_place_are_left_to_torch():
    single = Single("aten.add.Tensor", torch.ones(2), torch.ones(2))
    del single.tensors[1]
    assert single.call() is None

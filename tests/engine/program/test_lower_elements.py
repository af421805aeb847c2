"""Operations by element have torch's bits for all types and layouts, or are left to torch."""

import pytest
import torch
from torch import Tensor

from popgeo.capture.op_graph import Number, Op, OpGraph, Ref, Value
from popgeo.engine.program import lower_elements  # noqa: F401  it registers
from tests.support.chains import native
from tests.support.native_calls import calls_of, has_torchs_bits, lowered, placed, run

pytestmark = native
TYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 1e-42])


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(-3, 4, shape, generator=draw).to(dtype)
    x = torch.randn(shape, generator=draw, dtype=dtype)
    special = SPECIAL[torch.randint(0, len(SPECIAL), shape, generator=draw)].to(dtype)
    return torch.where(torch.rand(shape, generator=draw) < 0.3, special, x)


def layouts(dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """Return tensors of one shape: contiguous, transposed, with gaps, and repeated."""
    x, transposed = numbers((5, 3, 67), dtype, seed), numbers((67, 3, 5), dtype, seed + 1).permute(2, 1, 0)
    gaps, repeated = numbers((5, 4, 140), dtype, seed + 2)[:, 1:, 3:137:2], numbers((5, 1, 67), dtype, seed + 3)
    return [x, transposed, gaps, repeated.expand(5, 3, 67)]


ONE = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal,
    "square": torch.square, "cube": lambda x: x**3, "isnan": torch.isnan, "logical_not": torch.logical_not,
    "bitwise_not": torch.bitwise_not, "relu": torch.relu, "clamp": lambda x: x.clamp(-1, 2), "power 0": lambda x: x**0,
    "clamp_min": lambda x: x.clamp(min=1), "threshold": lambda x: torch.threshold(x, 0.5, 7.0),
    "fill": lambda x: x.masked_fill(x > 0, 2), "times a number": lambda x: x * 0.3, "less": lambda x: x < 0.3,
}  # fmt: skip
TWO = {
    "add": torch.add, "sub": torch.sub, "rsub": torch.rsub, "mul": torch.mul, "div": torch.div, "eq": torch.eq,
    "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "and": torch.logical_and,
    "or": torch.logical_or, "xor": torch.logical_xor, "bitwise_and": torch.bitwise_and, "factor": lambda x, y: x + 3 * y,
    "sub 2": lambda x, y: torch.sub(x, y, alpha=2), "where": lambda x, y: torch.where(x > y, x, y),
    "in place": lambda x, y: x.clone().mul_(y), "compare in place": lambda x, y: x.clone().lt_(y),
    "or in place": lambda x, y: x.clone().logical_or_(y), "threshold_backward": torch.ops.aten.threshold_backward,
}  # fmt: skip
LEFT = {
    **dict.fromkeys(("neg", "sub", "rsub", "sub 2", "sign", "square", "cube", "relu", "clamp", "clamp_min", "abs"), "bool"),
    "bitwise_not": "float", "bitwise_and": "float", "threshold": "int bool",
}  # fmt: skip


def fits(name: str, *types: torch.dtype) -> bool:
    left = LEFT.get(name, "")
    return not any(word in str(dtype) for word in left.split() for dtype in types)


@pytest.mark.parametrize("name", ONE)
def test_an_operation_of_one_tensor_has_torchs_bits(name):
    for dtype in TYPES:
        for x in layouts(dtype) if fits(name, dtype) else ():
            assert has_torchs_bits(ONE[name], x), (dtype, x.stride())


@pytest.mark.parametrize("name", [name for name in TWO if name != "threshold_backward"])
def test_an_operation_of_two_tensors_has_torchs_bits_for_all_pairs_of_types(name):
    for k, first in enumerate(TYPES):
        for second in TYPES:
            if not fits(name, first, second) or (name == "in place" and not torch.can_cast(torch.result_type(*(torch.ones(1, dtype=d) for d in (first, second))), first)):
                continue
            if name == "factor" and (first is torch.bool or second is torch.bool):
                continue
            x, y = layouts(first)[k % 4], layouts(second, 10)[(k + 1) % 4]
            assert has_torchs_bits(TWO[name], x, y), (first, second)
            assert has_torchs_bits(TWO[name], x, y[:1, :, :1]), (first, second)


def test_the_gradient_of_a_threshold_has_torchs_bits():
    function = lambda grad, x: torch.ops.aten.threshold_backward(grad, x, 0.5)  # noqa: E731
    for dtype in (torch.float32, torch.float64):
        assert has_torchs_bits(function, *layouts(dtype)[:2])


def test_extremes_have_torchs_bits_and_nan_wins():
    for dtype in (torch.float64, torch.int64):
        x, y = layouts(dtype)[:2]
        x, y = (torch.where(one == 0, 1, one) for one in (x, y))  # of zeros with both signs, torch returns either
        assert has_torchs_bits(torch.maximum, x, y)
        assert has_torchs_bits(torch.minimum, x, y)


def test_large_operands_and_scalars_and_empty_ones():
    x = numbers((700, 600), torch.float64)
    assert has_torchs_bits(lambda x: x * x.t().reshape(700, 600).mul(2), x) is True
    assert has_torchs_bits(torch.div, torch.tensor(7.0), torch.tensor(3))
    assert has_torchs_bits(torch.mul, torch.ones(0, 3), torch.ones(3))
    shape = (2, 1, 3, 2, 1, 3, 2)
    assert has_torchs_bits(torch.mul, numbers(shape, torch.float32), numbers(shape[::-1], torch.float32).permute(6, 5, 4, 3, 2, 1, 0))


def test_what_torch_computes_in_its_own_way_is_left_to_torch():
    x = torch.rand(5)
    assert calls_of(torch.sqrt, x) == [None]
    assert calls_of(torch.exp, x) == [None]
    assert calls_of(lambda x: x**0.5, x) == [None]
    assert calls_of(lambda x: torch.add(x, x, alpha=0.3), x) == [None]
    assert calls_of(lambda x: torch.div(x, x, rounding_mode="floor"), x) == [None]
    assert calls_of(lambda x: x.clamp(min=float("nan")), x) == [None]
    assert calls_of(lambda x: x * x, x.bfloat16()) == [None]
    assert calls_of(lambda x: x * 2, torch.ones(3, dtype=torch.complex64)) == [None]


def op_on(target: str, *tensors: Tensor, writes: tuple[int, ...] = ()) -> tuple[OpGraph, Op, dict[int, Tensor]]:
    """Return an operation on tensors; the last one is its result."""
    result = len(tensors) - 1
    op = Op(target=target, args=tuple(map(Ref, range(result))), outputs=(result,), writes=writes)
    return OpGraph(ops=(op,), values=(), inputs={}, outputs=()), op, dict(enumerate(tensors))


def test_a_result_may_lie_exactly_over_an_operand_but_not_partly():
    memory = torch.arange(10.0)
    y = torch.ones(5)
    exact, partly = (lowered(*op_on("aten.add.Tensor", memory[:5], y, memory[start : start + 5])) for start in (0, 2))
    assert partly is None and exact is not None
    assert run(exact) == 0
    assert memory.tolist() == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9]
    repeated = torch.zeros(1).expand(5)
    assert lowered(*op_on("aten.add.Tensor", y, y, repeated)) is None


def test_an_address_that_is_not_aligned_is_reported_and_nothing_is_written():
    x, y, result = torch.ones(5), torch.ones(5), torch.zeros(5)
    call = lowered(*op_on("aten.add.Tensor", x, y, result))
    call.words[call.words == x.data_ptr()] += 1
    assert run(call) != 0
    assert result.tolist() == [0] * 5


def test_a_changing_number_is_read_at_each_run():
    value = dict(shape=(2,), stride=(1,), offset=0, dtype=torch.float32)
    op = Op(target="aten.mul.Tensor", args=(Ref(0), Number(3, 2.0)), outputs=(1,))
    values = (Value(**value, storage=0, producer=None), Value(**value, storage=1, producer=0))
    graph = OpGraph(ops=(op,), values=values, inputs={}, outputs=(1,))
    tensors = {0: torch.tensor([1.0, 3.0]), 1: torch.zeros(2)}
    call = lowered(graph, op, tensors)
    ((array, index, slot),) = call.numbers
    assert slot == 3
    for number in (2.0, 0.1):
        array[index] = number
        assert run(call) == 0
        assert torch.equal(tensors[1], tensors[0] * number)


def test_values_without_a_place_are_left_to_torch():
    graph, op, tensors = op_on("aten.add.Tensor", torch.ones(2), torch.ones(2), torch.ones(2))
    assert lowered(graph, op, {0: tensors[0], 2: tensors[2]}) is None

"""Triton's extremes and softmax of rows: the definitions in the interpreter, and compiled ahead for two kinds of GPU.

As in `test_triton_kernels`, the first part needs TRITON_INTERPRET=1 from the start; the second part must not have it.
"""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from popgeo import ops
from popgeo.ops import reference, sum_on_device
from popgeo.ops.scatter_plan import ScatterPlan
from tests.ops.test_triton_kernels import CHANNELS, DTYPES, ROUNDING, assert_near, compiled_ahead, kernels_if, recorded


@pytest.fixture
def kernels() -> ModuleType:
    kernels_if(interpreted=True)
    from popgeo.ops import triton_rows

    return triton_rows


@pytest.fixture
def on_device(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Let tensors in memory take a GPU's way."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda t: True))
    return kernels


def problem(dtype: torch.dtype, channels: int = 5) -> tuple[Tensor, Tensor]:
    """Return entries with ties, infinities and NaN, and their rows: row 3 is empty, row 5 has NaN only, row 0 -inf."""
    torch.manual_seed(0)
    src, index = torch.randint(-3, 4, (60, channels)).to(dtype) / 2, torch.randint(7, (60,))
    index[index == 3] = index[20:50] = 1  # more edges than a program reads at a time
    src[index == 5], src[index == 0], src[2, -1] = torch.nan, -torch.inf, torch.nan
    return src, index


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_extremes_are_the_first_ones_of_the_definition(kernels: ModuleType, dtype: torch.dtype, largest: bool):
    for channels in (5, 130):
        src, index = problem(dtype, channels)
        expected = reference.scatter_extremum(src, index, 7, largest=largest)
        rowptr, perm = sum_on_device.plan(index, 7)
        assert all(map(torch.equal, kernels.extremum_rows(src, rowptr, perm, largest), expected))
    order = index.sort(stable=True).indices
    made = kernels.extremum_rows(src[order], rowptr, None, largest)
    assert all(map(torch.equal, made, reference.scatter_extremum(src[order], index[order], 7, largest=largest)))


def test_of_equal_zeros_the_first_one_counts(kernels: ModuleType):
    src, rowptr = torch.zeros(33, 2), torch.tensor([0, 33], dtype=torch.int32)
    src[0, 0] = src[1:, 1] = -0.0
    for largest in (True, False):
        out, arg = kernels.extremum_rows(src, rowptr, None, largest)
        assert arg.tolist() == [[0, 0]]
        assert out.signbit().tolist() == [[True, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("with_plan", [True, False])
def test_a_softmax_and_two_derivatives_are_those_of_the_definition(
    on_device: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, with_plan: bool
):
    torch.manual_seed(0)
    src, index, to_out = 3 * torch.randn(60, 3, dtype=dtype), torch.randint(4, (60,)), torch.randn(60, 3, dtype=dtype)
    index[index == 2] = 1
    plan = ScatterPlan.from_index(index, 4) if with_plan else None

    def passes() -> list[Tensor]:
        x, grad = src.clone().requires_grad_(), to_out.clone().requires_grad_()
        out = ops.scatter_softmax(x, index, 0, dim_size=4, plan=plan)
        (first,) = torch.autograd.grad(out, x, grad, create_graph=True)
        second = torch.autograd.grad(first.sin().sum(), (x, grad), create_graph=True)
        return [t.detach() for t in (out, first, *second, *torch.autograd.grad(second[0].sin().sum(), (x, grad)))]

    asked: list[str] = []
    for name in ("softmax_rows", "softmax_backward_rows"):
        real = getattr(on_device, name)
        monkeypatch.setattr(on_device, name, lambda *given, real=real, name=name: (asked.append(name), real(*given))[1])
    made = passes()
    assert {*asked} == {"softmax_rows", "softmax_backward_rows"}
    monkeypatch.undo()
    for one, other in zip(made, passes(), strict=True):
        torch.testing.assert_close(one, other, rtol=4 * ROUNDING[dtype], atol=4 * ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softmax_kernels_widen_half_precision_and_round_once(kernels: ModuleType, dtype: torch.dtype):
    torch.manual_seed(0)
    src, grad, index = torch.randn(60, 130).to(dtype), torch.randn(60, 130).to(dtype), torch.randint(4, (60,))
    rowptr, perm = sum_on_device.plan(index, 4)
    out = kernels.softmax_rows(src, rowptr, perm)
    assert_near(out, ops.scatter_softmax(src.double(), index, 0, dim_size=4), ROUNDING[dtype])
    weight, wide = out.double(), grad.double()
    total = torch.zeros(4, 130, dtype=torch.float64).index_add(0, index, weight * wide)
    back = kernels.softmax_backward_rows(grad, out, rowptr, perm)
    assert_near(back, weight * (wide - total[index]), ROUNDING[dtype])
    assert back.dtype is out.dtype is dtype


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # by the interpreter, for inf - inf
def test_special_numbers_of_a_softmax_are_those_of_the_processor(kernels: ModuleType):
    src, index = problem(torch.float32)
    src[index == 6] = torch.linspace(-90, 0, int((index == 6).sum())).unsqueeze(1)  # below e^-60: exactly 0
    made = kernels.softmax_rows(src, *sum_on_device.plan(index, 7))
    expected = ops.scatter_softmax(src, index, 0, dim_size=7)
    assert (expected[index == 6] == 0).any()
    assert torch.equal(made == 0, expected == 0)
    torch.testing.assert_close(made, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extremes_and_products_of_the_public_functions_have_the_processors_bits(
    on_device: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
):
    src, index = problem(dtype)
    there = [ops.scatter_max(src, index, 0, dim_size=7), ops.scatter_min(src, index, 0, dim_size=7)]
    product = ops.scatter_mul(src.nan_to_num(1, 1, 1), index, 0, dim_size=7)
    monkeypatch.undo()
    here = [ops.scatter_max(src, index, 0, dim_size=7), ops.scatter_min(src, index, 0, dim_size=7)]
    for one, other in zip(there, here, strict=True):
        assert all(map(torch.equal, one, other))
    assert torch.equal(product, ops.scatter_mul(src.nan_to_num(1, 1, 1), index, 0, dim_size=7))


@pytest.mark.parametrize("capability", [80, 90], ids="sm_{}".format)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_compile_ahead_and_contain_no_atomic_operation(
    dtype: torch.dtype, capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    kernels_if(interpreted=False)
    from popgeo.ops import triton_rows

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with monkeypatch.context() as patched:
        found = recorded(triton_rows, patched)
        for channels in CHANNELS:
            src, index = problem(dtype, channels)
            rowptr, perm = sum_on_device.plan(index, 7)
            for order in (perm, None):
                for largest in (True, False):
                    triton_rows.extremum_rows(src, rowptr, order, largest)
                triton_rows.softmax_rows(src, rowptr, order)
                triton_rows.softmax_backward_rows(src, src, rowptr, order)
    assert len({compiled_ahead(launch, capability) for launch in found}) == 3

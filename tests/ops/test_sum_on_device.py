"""Sums by row pointers, as a GPU runs them: the bits of the reference, on the processor and in Triton's interpreter."""

import itertools
import os
from types import ModuleType

import pytest
import torch
from torch import Tensor

from popgeo import ops
from popgeo.nn.atom_edges import directions
from popgeo.ops import reference, sum_on_device
from popgeo.ops.scatter_plan import EdgePlan, ScatterPlan

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def edges(num_rows: int = 7, num_edges: int = 40, channels: int = 5, dtype: torch.dtype = torch.float32):
    """Return values, sources and destinations; row 3 receives nothing."""
    torch.manual_seed(0)
    src, dst = torch.randint(0, num_rows, (2, num_edges))
    dst[dst == 3] = 4
    return torch.randn(num_rows, channels).to(dtype), torch.randn(num_edges, channels).to(dtype), src, dst


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    pytest.importorskip("triton", reason="triton is not installed; it comes with torch's CUDA builds")
    if os.environ.get("TRITON_INTERPRET") != "1":  # Triton looks when it is imported
        pytest.skip("Triton needs a GPU, or TRITON_INTERPRET=1 from the start of the process")
    from popgeo.ops import triton_kernels

    return triton_kernels


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", ["found here", "of a plan", "sorted"])
def test_a_sum_has_the_bits_of_the_reference(order: str, dtype: torch.dtype):
    _, values, _, index = edges(dtype=dtype)
    if order == "sorted":
        index = index.sort().values
    plan = None if order == "found here" else ScatterPlan.from_index(index, 7)
    given = (None, None) if plan is None else (plan.rowptr, plan.perm)
    total = sum_on_device.scatter_sum(values, index, 7, *given)
    assert torch.equal(total, reference.scatter_sum(values, index, 7))
    assert total.dtype == dtype


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)], ids=["no edges", "no channels"])
def test_what_is_empty_sums_to_zero(shape: tuple[int, int]):
    index = torch.zeros(shape[0], dtype=torch.long)
    assert torch.equal(sum_on_device.scatter_sum(torch.ones(shape), index, 2, None, None), torch.zeros(2, shape[1]))


@pytest.mark.parametrize("with_plan", [False, True], ids=["without a plan", "with a plan"])
def test_the_ops_take_this_way_on_a_gpu_and_so_do_their_gradients(with_plan: bool, monkeypatch: pytest.MonkeyPatch):
    x, w, src, dst = edges()

    def results() -> list[Tensor]:
        plan = EdgePlan.from_edge_index(torch.stack([src, dst]), 7) if with_plan else None
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        out = ops.cfconv(*leaves, src, dst, 7, plan)
        total = ops.scatter(out[src] * leaves[1], dst, 0, dim_size=7, plan=None if plan is None else plan.dst)
        rows = ops.segment_csr(total, torch.tensor([0, 3, 3, 7]))
        return [out, total, rows, *torch.autograd.grad(rows.square().sum(), leaves)]

    usual = results()
    calls = []
    monkeypatch.setattr(sum_on_device, "serves", lambda src: calls.append(1) or True)
    for ours, theirs in zip(results(), usual, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert len(calls) == (4 if with_plan else 5)  # a missing plan is made for the op and its gradient


def test_an_index_out_of_range_is_reported():
    with pytest.raises(RuntimeError, match=r"index has entries outside of 0 to 2; the number of rows is 3"):
        sum_on_device.plan(torch.tensor([0, 3]), 3)


def test_how_sums_run_is_said():
    assert sum_on_device.describe().startswith("sums by ")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triton_sums_rows_in_the_order_of_the_edges(kernels: ModuleType, dtype: torch.dtype):
    _, values, _, index = edges(dtype=dtype)
    rowptr, perm = sum_on_device.plan(index, 7)
    wanted = reference.scatter_sum(values, index, 7)
    # Triton's interpreter cuts bfloat16 off where a GPU rounds.
    close = {"rtol": 2**-7, "atol": 0} if dtype == torch.bfloat16 else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(kernels.sum_rows(values, rowptr, perm), wanted, **close)
    ordered = values[perm.long()].contiguous()
    torch.testing.assert_close(kernels.sum_rows(ordered, rowptr, None), wanted, **close)


def test_triton_convolves_forward_and_backward(kernels: ModuleType):
    x, w, src, dst = edges(channels=130)  # more than one block of channels
    rowptr, perm = sum_on_device.plan(dst, 7)
    torch.testing.assert_close(kernels.cfconv(x, w, src, rowptr, perm), reference.cfconv(x, w, src, dst, 7))
    grad = torch.randn(7, 130)
    to_x, to_w = reference.cfconv_backward(grad, x, w, src, dst)
    rowptr, perm = sum_on_device.plan(src, 7)
    torch.testing.assert_close(kernels.cfconv(grad, w, dst, rowptr, perm), to_x)
    assert torch.equal(kernels.products(x, grad, src, dst), to_w)


class OnDevice(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = True


def test_on_a_gpu_triton_sums_where_it_is_there(monkeypatch: pytest.MonkeyPatch):
    x, w, src, dst = edges()
    asked: list[tuple[str, tuple[Tensor, ...]]] = []

    class Kernels:
        def __getattr__(self, name: str):
            return lambda *given: asked.append((name, given)) or torch.full((1,), float(len(asked)))

    monkeypatch.setattr(sum_on_device, "triton_kernels", Kernels)
    there = [t.as_subclass(OnDevice) for t in (w, x)]
    rowptr, perm = sum_on_device.plan(dst, 7)
    for given in ((None, None), (rowptr, perm)):
        asked.clear()
        assert sum_on_device.scatter_sum(there[0], dst, 7, *given) == 1
        assert sum_on_device.cfconv(there[1], w, src, dst, 7, *given) == 2
        assert sum_on_device.cfconv_backward(there[1], there[1], w, dst, src, *given) == (3, 4)
        assert [name for name, _ in asked] == ["sum_rows", "cfconv", "cfconv", "products"]
        assert torch.equal(asked[0][1][1], rowptr)
        assert torch.equal(asked[0][1][2], perm)
        assert torch.equal(asked[1][1][2], src)
    sum_on_device.scatter_sum(w, dst, 7, None, None)
    sum_on_device.cfconv_backward(x, x, w, src, dst, None, None)
    assert len(asked) == 4  # on a processor there is no Triton


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_plan", [False, True])
def test_without_triton_torch_sums_and_differentiates_in_order(dtype: torch.dtype, with_plan: bool):
    x, w, src, dst = edges(dtype=dtype)
    forward = sum_on_device.plan(dst, 7) if with_plan else (None, None)
    assert torch.equal(sum_on_device.cfconv(x, w, src, dst, 7, *forward), reference.cfconv(x, w, src, dst, 7))
    backward = sum_on_device.plan(src, 7) if with_plan else (None, None)
    made = sum_on_device.cfconv_backward(x, x, w, src, dst, *backward)
    assert all(map(torch.equal, made, reference.cfconv_backward(x, x, w, src, dst)))


def test_one_row_none_and_rows_without_edges():
    rows = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    for rowptr, expected in (([0], []), ([0, 2], [[5, 10]]), ([0, 0, 2, 2], [[0, 0], [5, 10], [0, 0]])):
        made = sum_on_device.reduce_in_torch(rows, torch.tensor(rowptr, dtype=torch.int32), None)
        assert made.tolist() == expected
        assert made.shape[1] == 2
    assert sum_on_device.reduce_in_torch(rows[:0], torch.tensor([0, 0]), None).tolist() == [[0, 0]]
    assert sum_on_device.reduce_in_torch(rows, torch.tensor([0, 1, 2]), torch.tensor([1, 0])).tolist() == [
        [4, 8],
        [1, 2],
    ]


@pytest.mark.parametrize("index", [[0, 3], [-1, 1]])
def test_on_a_gpu_every_end_is_checked(monkeypatch: pytest.MonkeyPatch, index: list[int]):
    monkeypatch.setattr(sum_on_device, "serves", lambda src: True)
    x, w, wrong, right = torch.ones(3, 2), torch.ones(2, 2), torch.tensor(index), torch.tensor([0, 1])
    popgeo = torch.ops.popgeo
    rowptr, perm = sum_on_device.plan(right, 3)
    for name, call in (
        ("src", lambda: popgeo.cfconv(x, w, wrong, right, 3)),
        ("src", lambda: popgeo.cfconv(x, w, wrong, right, 3, rowptr, perm)),
        ("index", lambda: popgeo.cfconv(x, w, right, wrong, 3)),
        ("dst", lambda: popgeo.cfconv_backward(x, x, w, right, wrong)),
        ("dst", lambda: popgeo.cfconv_backward(x, x, w, right, wrong, None, None, rowptr, perm)),
        ("index", lambda: popgeo.scatter_sum(w, wrong, 3)),
    ):
        with pytest.raises(RuntimeError, match=f"{name} has entries outside of 0 to 2"):
            call()
    calls = (
        lambda bad: popgeo.cfconv(x, w, right, right, 3, bad, perm),
        lambda bad: popgeo.cfconv_backward(x, x, w, right, right, None, None, bad, perm),
        lambda bad: popgeo.scatter_sum(w, right, 3, bad, perm),
    )
    for call, bad in itertools.product(calls, (rowptr.long(), rowptr[:3])):
        with pytest.raises(ValueError, match="A tensor of the plan"):
            call(bad)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_plan", [False, True], ids=["without a plan", "with a plan"])
def test_on_a_gpu_products_are_taken_in_the_order_of_the_edges(
    with_plan: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    _, values, _, index = edges(dtype=dtype)
    expected = reference.scatter_mul(values, index, 7)
    monkeypatch.setattr(sum_on_device, "serves", lambda src: True)
    monkeypatch.setattr(reference, "scatter_mul", lambda *_: pytest.fail("this would be atomic multiplications"))
    given = sum_on_device.plan(index, 7) if with_plan else ()
    assert torch.equal(torch.ops.popgeo.scatter_mul(values, index, 7, *given), expected)
    assert expected[3].tolist() == [1] * 5  # nothing arrives
    nothing = torch.ops.popgeo.scatter_mul(values[:0], index[:0], 2)
    assert torch.equal(nothing, torch.ones(2, 5, dtype=dtype))


def lengths(pos: Tensor, edge_index: Tensor) -> Tensor:
    return ops.distance(pos, edge_index, None, 1.0)


def unit_vectors(pos: Tensor, edge_index: Tensor) -> Tensor:
    return directions(pos, edge_index, torch.full((edge_index.shape[1],), 0.5), cutoff=1.0)


@pytest.mark.parametrize("of_edges", [lengths, unit_vectors])
def test_on_a_gpu_forces_of_edges_are_added_in_the_order_of_the_edges(of_edges, monkeypatch: pytest.MonkeyPatch):
    _, _, *ends = edges()
    pos = torch.randn(7, 3).requires_grad_()

    def forces() -> Tensor:
        out = of_edges(pos, torch.stack(ends))
        return torch.autograd.grad(out, pos, torch.linspace(-1, 1, out.numel()).view_as(out))[0]

    usual, calls = forces(), []
    real = sum_on_device.scatter_sum
    monkeypatch.setattr(sum_on_device, "serves", lambda src: True)
    monkeypatch.setattr(sum_on_device, "scatter_sum", lambda *given: calls.append(1) or real(*given))
    torch.testing.assert_close(forces(), usual)
    assert len(calls) == 2  # one for each end

"""Each way to call the convolution: with and without plan, gradients and layouts; and the kernel's arguments."""

import importlib
import itertools
import struct

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from popgeo.native import library
from popgeo.ops import EdgePlan, ScatterPlan, cfconv, sum_on_device

module = importlib.import_module("popgeo.ops.cfconv")
SRC, DST = torch.tensor([2, 0, 2, 1, 0]), torch.tensor([1, 0, 3, 1, 3])
NUM_SOURCES, NUM_NODES = 3, 4
X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [-2.0, 5.0]])
W = torch.tensor([[1.0, 1.0], [2.0, 0.0], [-1.0, 3.0], [4.0, 1.0], [1.0, -2.0]])
GRAD = torch.tensor([[1.0, -1.0], [2.0, 1.0], [5.0, 5.0], [-3.0, 2.0]])


def plan_of(src: Tensor = SRC, dst: Tensor = DST) -> EdgePlan:
    return EdgePlan(src=ScatterPlan.from_index(src, NUM_SOURCES), dst=ScatterPlan.from_index(dst, NUM_NODES))


def edge_by_edge(x: Tensor, w: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the result and both gradients."""
    out, to_x, to_w = torch.zeros(NUM_NODES, x.shape[1]), torch.zeros_like(x), torch.zeros_like(w)
    for e, (j, i) in enumerate(zip(SRC.tolist(), DST.tolist(), strict=True)):
        out[i] += x[j] * w[e]
        to_x[j] += grad[i] * w[e]
        to_w[e] = grad[i] * x[j]
    return out, to_x, to_w


def layouts(tensor: Tensor) -> list[Tensor]:
    return [tensor, tensor.t().contiguous().t(), torch.stack([tensor, 0 * tensor], 2)[..., 0]]


@pytest.mark.parametrize("with_plan", [False, True])
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
def test_every_layout_and_every_wish_for_gradients(native, with_plan: bool, index_dtype: torch.dtype):
    expected = edge_by_edge(X, W, GRAD)
    for strided in (False, True):
        src, dst = SRC.to(index_dtype), DST.to(index_dtype)
        if strided:
            src, dst = (torch.stack([end, 0 * end], 1)[:, 0] for end in (src, dst))
        plan = plan_of(src, dst) if with_plan else None
        for x, w in itertools.product(layouts(X), layouts(W)):
            for wants_x, wants_w in itertools.product([False, True], repeat=2):
                x, w = x.detach().requires_grad_(wants_x), w.detach().requires_grad_(wants_w)
                out = cfconv(x, w, src, dst, NUM_NODES, plan)
                assert torch.equal(out.detach(), expected[0])
                assert out.requires_grad is (wants_x or wants_w)
                with torch.no_grad():
                    assert torch.equal(cfconv(x, w, src, dst, NUM_NODES, plan), expected[0])
                wanted = [(leaf, to) for leaf, to in ((x, expected[1]), (w, expected[2])) if leaf.requires_grad]
                if wanted:
                    found = torch.autograd.grad(out, [leaf for leaf, _ in wanted], GRAD)
                    assert all(torch.equal(one, to) for one, (_, to) in zip(found, wanted, strict=True))


@pytest.mark.parametrize("wanted", [w for w in itertools.product([False, True], repeat=3) if any(w)])
@pytest.mark.parametrize("with_plan", [False, True])
def test_the_gradients_are_differentiated_for_whom_it_is_wanted(native, wanted: tuple[bool, ...], with_plan: bool):
    plan = plan_of() if with_plan else None
    plans = ()
    if plan is not None:
        plans = plan.dst.rowptr, plan.dst.perm, plan.src.rowptr, plan.src.perm
    given = [t.double().requires_grad_(is_wanted) for t, is_wanted in zip((GRAD, X, W), wanted, strict=True)]
    to = torch.randn(3, 2, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    grads = torch.ops.popgeo.cfconv_backward(*given, SRC, DST, *plans)
    grad, x, w = given
    plain = torch.zeros(3, 2).double().index_add(0, SRC, grad[DST] * w), grad[DST] * x[SRC]
    leaves = [leaf for leaf in given if leaf.requires_grad]
    kept = [n for n, part in enumerate(plain) if part.requires_grad]
    expected = torch.autograd.grad([plain[n] for n in kept], leaves, [to[n] for n in kept])
    found = torch.autograd.grad(grads, leaves, to)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_the_shortest_way_needs_no_dispatcher_and_tells_the_kernel_all(monkeypatch):
    """Check the structure CfconvCall of gather_scatter.cpp."""
    told: list[tuple[int, ...]] = []
    plan = plan_of()
    monkeypatch.setattr(library, "packed", lambda name: lambda call: told.append(struct.unpack("14q", call)) or 0)
    monkeypatch.setattr(module, "_CFCONV", None)
    for dtype, number in ((torch.float32, 0), (torch.float64, 1)):
        x, w = X.to(dtype).requires_grad_(), W.to(dtype)
        with torch.no_grad():
            out = cfconv(x, w, SRC, DST, NUM_NODES, plan)
        order = plan.dst.rowptr.data_ptr(), plan.dst.perm.data_ptr()
        pointers = x.data_ptr(), w.data_ptr(), SRC.data_ptr(), 0, *order, out.data_ptr()
        assert told.pop() == (number, *pointers, 5, NUM_SOURCES, NUM_NODES, 2, 0, torch.get_num_threads())
        assert (out.shape, out.dtype) == ((NUM_NODES, 2), dtype)


def test_with_a_plan_too_what_does_not_fit_is_refused(native):
    plan = plan_of()
    with pytest.raises(ValueError, match=r"x has shape \(3, 2\) and w \(5, 1\)"):
        cfconv(X, W[:, :1].contiguous(), SRC, DST, NUM_NODES, plan)
    with pytest.raises(ValueError, match=r"x has shape \(3, 2\) and w \(4, 2\)"):
        cfconv(X, W[:4], SRC, DST, NUM_NODES, plan)
    with pytest.raises(ValueError, match=r"x is torch\.float32 on cpu and w torch\.float64"):
        cfconv(X, W.double(), SRC, DST, NUM_NODES, plan)
    with pytest.raises(ValueError, match="another src, for another number of rows than 2"):
        cfconv(X[:2], W, SRC, DST, NUM_NODES, plan)
    with pytest.raises(ValueError, match="another dst, for another number of rows than 5"):
        cfconv(X, W, SRC, DST, 5, plan)
    with pytest.raises(ValueError, match="another dst"):
        cfconv(X, W, SRC, SRC, NUM_NODES, plan)
    other = ScatterPlan.from_index(SRC[:3], NUM_SOURCES)
    with pytest.raises(ValueError, match="another src"):
        cfconv(X, W, SRC, DST, NUM_NODES, EdgePlan(src=other, dst=plan.dst))
    with pytest.raises(ValueError, match=r"w torch\.float32 on meta"):
        cfconv(X, W.to("meta"), SRC, DST, NUM_NODES, plan)
    with pytest.raises(ValueError, match="and w"):
        cfconv(X, W[0], SRC, DST, NUM_NODES, plan)
    assert cfconv(X.long(), W.long(), SRC, DST, NUM_NODES, plan).tolist() == edge_by_edge(X, W, GRAD)[0].tolist()


@pytest.mark.parametrize("with_plan", [False, True])
def test_in_mixed_precision_both_take_the_wider_type(native, with_plan: bool):
    plan = plan_of() if with_plan else None
    expected = edge_by_edge(X, W, GRAD)[0]
    with torch.autocast("cpu", torch.bfloat16):
        for x, w in ((X, W.bfloat16()), (X.bfloat16(), W)):
            out = cfconv(x, w, SRC, DST, NUM_NODES, plan)
            assert out.dtype is torch.float32
            assert torch.equal(out, expected)
        assert cfconv(X.bfloat16(), W.bfloat16(), SRC, DST, NUM_NODES, plan).dtype is torch.bfloat16
    with pytest.raises(ValueError, match="convert one to the other"):
        cfconv(X, W.bfloat16(), SRC, DST, NUM_NODES, plan)


def test_a_mode_that_watches_operations_sees_a_planned_convolution(native):
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    plan = plan_of()
    with Watch():
        cfconv(X, W, SRC, DST, NUM_NODES, plan)
    assert any("popgeo.cfconv" in name for name in seen)


def test_a_tensor_of_another_class_is_convolved_by_torch_s_dispatcher(native):
    class Own(torch.Tensor):
        pass

    for x, w in ((X.as_subclass(Own), W), (X, W.as_subclass(Own))):
        for plan in (None, plan_of()):
            assert type(cfconv(x, w, SRC, DST, NUM_NODES, plan)) is Own


@pytest.mark.parametrize(("name", "limit"), [("src", 2), ("dst", 3)])
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
def test_gradients_of_an_index_out_of_range_are_refused(native, name: str, limit: int, index_dtype: torch.dtype):
    for value in (-1, limit + 1):
        ends = {"src": SRC.clone(), "dst": DST.clone()}
        ends[name][3] = value
        ends = {key: end.to(index_dtype) for key, end in ends.items()}
        with pytest.raises(ValueError, match=rf"{name}\[3\] is {value}; allowed are 0 to {limit}"):
            torch.ops.popgeo.cfconv_backward(GRAD, X, W, ends["src"], ends["dst"])
        with pytest.raises(ValueError, match=rf"{name}\[3\] is {value}; allowed are 0 to {limit}"):
            torch.ops.popgeo.cfconv(X, W, ends["src"], ends["dst"], NUM_NODES)


def test_shapes_are_known_without_data():
    x, w, src, dst = (t.to("meta") for t in (X, W, SRC, DST))
    assert torch.ops.popgeo.cfconv(x, w, src, dst, 9).shape == (9, 2)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x, w, src, dst = map(mode.from_tensor, (X, W, SRC, DST))
        assert cfconv(x, w, src, dst, 9).shape == (9, 2)
        assert cfconv(x, w, src, dst, NUM_NODES, plan_of(src, dst)).shape == (NUM_NODES, 2)
        grads = torch.ops.popgeo.cfconv_backward(mode.from_tensor(GRAD), x, w, src, dst)
        assert [grad.shape for grad in grads] == [(3, 2), (5, 2)]


def test_on_a_gpu_both_passes_go_by_row_pointers(monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(sum_on_device, "serves", lambda t: True)
    for name in ("cfconv", "cfconv_backward"):
        real = getattr(sum_on_device, name)
        monkeypatch.setattr(
            sum_on_device, name, lambda *given, real=real, name=name: (asked.append(name), real(*given))[1]
        )
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    for plan in (None, plan_of()):
        asked.clear()
        out = cfconv(x, w, SRC, DST, NUM_NODES, None if plan is None else plan)
        found = out.detach(), *torch.autograd.grad(out, (x, w), GRAD)
        assert all(map(torch.equal, found, edge_by_edge(X, W, GRAD)))
        assert asked == ["cfconv", "cfconv_backward", "cfconv"]

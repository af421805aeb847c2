"""The fused convolution: by hand, against plain torch bit by bit, with any number of threads, and its errors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.native import library
from popgeo.ops import EdgePlan, ScatterPlan, cfconv

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def forward_and_gradients(x, w, src, dst, num_nodes, plan, grad):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    out = cfconv(x, w, src, dst, num_nodes, plan)
    return (out.detach(), *torch.autograd.grad(out, (x, w), grad))


def plain(x, w, src, dst, num_nodes, grad):
    message = x[src] * w
    out = x.new_zeros(num_nodes, x.shape[1]).index_add_(0, dst, message)
    grad_x = torch.zeros_like(x).index_add_(0, src, grad[dst] * w)
    return out, grad_x, x[src] * grad[dst]


def test_values_by_hand(native):
    x, w = torch.tensor([[2.0, 1.0], [3.0, -1.0]]), torch.tensor([[10.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    src, dst = torch.tensor([1, 0, 1]), torch.tensor([0, 2, 2])
    grad = torch.tensor([[1.0, 1.0], [9.0, 9.0], [2.0, 3.0]])
    out, grad_x, grad_w = forward_and_gradients(x, w, src, dst, 3, None, grad)
    assert out.tolist() == [[30.0, -1.0], [0.0, 0.0], [5.0, -1.0]]
    assert grad_x.tolist() == [[2.0, 6.0], [12.0, 10.0]]
    assert grad_w.tolist() == [[3.0, -1.0], [4.0, 3.0], [6.0, -3.0]]


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.tuples(st.integers(0, 50), st.integers(1, 12), st.integers(1, 9), st.integers(0, 140)),
    dtype=st.sampled_from(DTYPES),
    is_sorted=st.booleans(),
    with_plan=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_compiled_and_fallback_give_the_bits_of_plain_torch(sizes, dtype, is_sorted, with_plan, seed):
    num_edges, num_sources, num_nodes, channels = sizes
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(num_sources, (num_edges,), generator=generator)
    dst = torch.randint(num_nodes, (num_edges,), generator=generator)
    dst = dst.sort().values if is_sorted else dst
    x, w, grad = (torch.randn(n, channels, generator=generator).to(dtype) for n in (num_sources, num_edges, num_nodes))
    plan = EdgePlan(src=ScatterPlan.from_index(src, num_sources), dst=ScatterPlan.from_index(dst, num_nodes))
    arguments = (x, w, src, dst, num_nodes, plan if with_plan else None, grad)
    compiled = forward_and_gradients(*arguments)
    with library.without_native():
        fallback = forward_and_gradients(*arguments)
    wide = plain(x.float(), w.float(), src, dst, num_nodes, grad.float()) if x.element_size() == 2 else None
    expected = plain(x, w, src, dst, num_nodes, grad) if wide is None else [part.to(dtype) for part in wide]
    for one, two, three in zip(compiled, fallback, expected, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("channels", [100, 128])
def test_any_number_of_threads_and_streaming_stores_give_the_same_bits(native, generator, num_threads, channels):
    num_nodes, degree = 300, 28  # filters of 3 MB: their gradient bypasses the caches
    dst = torch.arange(num_nodes).repeat_interleave(degree)
    src = torch.randint(num_nodes, dst.shape, generator=generator)
    x, w, grad = (torch.randn(n, channels, generator=generator) for n in (num_nodes, len(dst), num_nodes))
    expected = plain(x, w, src, dst, num_nodes, grad)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for one, two in zip(forward_and_gradients(x, w, src, dst, num_nodes, None, grad), expected, strict=True):
            assert torch.equal(one, two)
    finally:
        torch.set_num_threads(before)


def test_the_regular_plan_of_a_knn_graph_serves_its_sorted_end(native, generator):
    dst = ScatterPlan.regular(num_rows=20, degree=4)
    src = torch.randint(20, (80,), generator=generator)
    x, w = torch.randn(20, 8), torch.randn(80, 8)
    plan = EdgePlan(src=ScatterPlan.from_index(src, 20), dst=dst)
    assert torch.equal(cfconv(x, w, src, dst.index, 20, plan), cfconv(x, w, src, dst.index, 20))


@pytest.mark.parametrize(("name", "allowed"), [("src", 3), ("dst", 5)])
@pytest.mark.parametrize("value", [-1, 6, 2**40])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_an_index_out_of_range_is_named(native, name, allowed, value, needs_grad):
    ends = {"src": torch.tensor([0, 1, 2]), "dst": torch.tensor([0, 1, 2])}
    ends[name][1] = value
    x, w = torch.randn(4, 2, requires_grad=needs_grad), torch.randn(3, 2)
    with pytest.raises(ValueError, match=rf"{name}\[1\] is {value}; allowed are 0 to {allowed}"):
        cfconv(x, w, **ends, num_nodes=6)


def test_what_does_not_fit_is_refused(native):
    x, w, end = torch.randn(4, 2), torch.randn(3, 2), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match=r"x has shape \(4, 2\) and w \(3, 5\)"):
        cfconv(x, torch.randn(3, 5), end, end, 4)
    with pytest.raises(ValueError, match="convert one to the other"):
        cfconv(x, w.double(), end, end, 4)
    with pytest.raises(ValueError, match=r"dst has shape \(2,\)"):
        cfconv(x, w, end, end[:2], 4)
    with pytest.raises(ValueError, match=r"src has dtype torch\.float32"):
        cfconv(x, w, end.float(), end, 4)
    with pytest.raises(ValueError, match="num_nodes is -1"):
        cfconv(x, w, end, end, -1)


def test_a_stale_plan_given_to_the_op_itself_never_leaves_its_arrays():
    """The public function raises for such plans; a program that calls the op with them gets an error, not a crash."""
    x, w, end = torch.randn(4, 2), torch.randn(3, 2), torch.tensor([0, 1, 2])
    rowptr = torch.tensor([0, 1, 2, 3, 3], dtype=torch.int32)
    perm = torch.tensor([0, 1, 2], dtype=torch.int32)
    if not library.is_available():
        pytest.skip(library.reason())
    for bad_rowptr, bad_perm in [
        (rowptr, torch.tensor([0, 1, 3], dtype=torch.int32)),
        (rowptr, torch.tensor([0, -1, 2], dtype=torch.int32)),
        (torch.tensor([0, 3, 2, 3, 3], dtype=torch.int32), perm),
        (torch.tensor([0, 1, 2, 3, 9], dtype=torch.int32), perm),
        (torch.tensor([-5, 1, 2, 3, 3], dtype=torch.int32), perm),
        (rowptr[:-1], perm),
        (rowptr.long(), perm),
    ]:
        with pytest.raises(ValueError, match="plan"):
            torch.ops.popgeo.cfconv(x, w, end, end, 4, bad_rowptr, bad_perm)


def test_a_stale_plan_given_to_the_gradients_op_itself_never_leaves_its_arrays():
    x, w, end = torch.randn(4, 2), torch.randn(3, 2), torch.tensor([0, 1, 2])
    rowptr, perm = (torch.tensor(part, dtype=torch.int32) for part in ([0, 1, 2, 3, 3], [0, 1, 3]))
    if not library.is_available():
        pytest.skip(library.reason())
    with pytest.raises(ValueError, match="plan"):
        torch.ops.popgeo.cfconv_backward(x, x, w, end, end, None, None, rowptr, perm, 0)

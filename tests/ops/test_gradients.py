"""First and second derivatives of every op, against finite differences in float64."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from popgeo import ops
from popgeo.ops import EdgePlan, ScatterPlan

NUM_EDGES, NUM_ROWS, CHANNELS = 7, 4, 2
INDEX = torch.tensor([2, 0, 2, 3, 0, 2, 0])  # nothing arrives at row 1
OTHER = torch.tensor([1, 1, 0, 4, 2, 4, 1])
INDPTR = torch.tensor([0, 3, 3, 6])


def entries(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def twice(function, *inputs):
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@pytest.fixture(params=[False, True], ids=["no plan", "plan"])
def plan(request):
    return ScatterPlan.from_index(INDEX, NUM_ROWS) if request.param else None


@pytest.mark.parametrize("reduce", ["sum", "mean", "mul", "min", "max"])
def test_scatter(native, plan, reduce):
    twice(
        lambda src: ops.scatter(src, INDEX, 0, dim_size=NUM_ROWS, reduce=reduce, plan=plan),
        entries(NUM_EDGES, CHANNELS),
    )


def test_a_product_with_zeros_has_the_right_derivatives(native):
    src = torch.tensor([[0.0], [2.0], [0.0], [3.0], [0.0], [5.0], [7.0]], dtype=torch.float64, requires_grad=True)
    twice(lambda src: ops.scatter_mul(src, INDEX, 0, dim_size=NUM_ROWS), src)
    (grad,) = torch.autograd.grad(ops.scatter_mul(src, INDEX, 0, dim_size=NUM_ROWS).sum(), src)
    assert grad.flatten().tolist() == [0, 0, 0, 1, 14, 0, 0]


def test_complex_numbers(native, plan):
    def complex_entries(*shape):
        return torch.complex(entries(*shape), entries(*shape).sin()).detach().requires_grad_()

    edges = complex_entries(NUM_EDGES, CHANNELS)
    for reduce in ("sum", "mean", "mul"):
        twice(lambda src, how=reduce: ops.scatter(src, INDEX, 0, dim_size=NUM_ROWS, reduce=how, plan=plan), edges)
    twice(lambda src: ops.segment_csr(src, INDPTR), edges)
    plans = None if plan is None else EdgePlan.from_edge_index(torch.stack([OTHER, INDEX]), 5)
    twice(lambda x, w: ops.cfconv(x, w, OTHER, INDEX, 5, plans), complex_entries(5, CHANNELS), edges)


def test_gather(native, plan):
    twice(lambda x: ops.gather(x, INDEX, plan=plan), entries(NUM_ROWS, CHANNELS))


@pytest.mark.parametrize("name", ["scatter_softmax", "scatter_log_softmax", "scatter_logsumexp"])
def test_composites(native, plan, name):
    twice(lambda src: getattr(ops, name)(src, INDEX, 0, dim_size=NUM_ROWS, plan=plan), entries(NUM_EDGES, CHANNELS))


def test_scatter_std(native):
    twice(lambda src: ops.scatter_std(src, INDEX, 0), entries(NUM_EDGES, CHANNELS))  # row 3 has one entry


def test_equal_entries_such_as_those_of_padding_have_no_spread_and_no_slope(native):
    src = torch.tensor([1.0, 3.0, 0.0, 0.0, 0.0], requires_grad=True)
    ops.scatter_std(src, torch.tensor([0, 0, 1, 1, 1])).sum().backward()
    assert src.grad.abs().gt(0).tolist() == [True, True, False, False, False]


def test_an_index_out_of_range_has_no_spread_either(native):
    with pytest.raises(ValueError, match=r"index\[1\] is 5; allowed are 0 to 1"):
        ops.scatter_std(torch.ones(2), torch.tensor([0, 5]), dim_size=2)


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_segments(native, reduce):
    twice(lambda src: ops.segment_csr(src, INDPTR, reduce=reduce), entries(NUM_EDGES, CHANNELS))
    twice(lambda src: ops.segment_coo(src, INDEX.sort().values, dim_size=NUM_ROWS, reduce=reduce), entries(NUM_EDGES))


def test_gathers_of_segments(native):
    twice(lambda x: ops.gather_csr(x, INDPTR), entries(3, CHANNELS))
    twice(lambda x: ops.gather_coo(x, INDEX), entries(NUM_ROWS, CHANNELS))


@pytest.mark.parametrize("with_plan", [False, True])
def test_cfconv(native, with_plan):
    edge_plan = EdgePlan(src=ScatterPlan.from_index(OTHER, 5), dst=ScatterPlan.from_index(INDEX, NUM_ROWS))
    x, w = entries(5, CHANNELS), entries(NUM_EDGES, CHANNELS)

    def convolve(x, w):
        return ops.cfconv(x, w, OTHER, INDEX, NUM_ROWS, edge_plan if with_plan else None)

    twice(convolve, x, w)
    twice(lambda x: convolve(x, w.detach()), x)
    twice(lambda w: convolve(x.detach(), w), w)


def test_a_force_can_be_trained(native):
    """Differentiate a gradient by a third tensor, as training on forces does."""
    x, w, scale = entries(5, CHANNELS), entries(NUM_EDGES, CHANNELS), entries(1)

    def force(scale):
        energy = ops.cfconv(x.tanh(), w * scale, OTHER, INDEX, NUM_ROWS).square().sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]

    assert gradcheck(force, (scale,))


def test_forward_mode_is_refused_rather_than_wrong(native):
    x, w = entries(5, CHANNELS).detach(), entries(NUM_EDGES, CHANNELS).detach()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(ValueError, match="no forward-mode derivative"):
            ops.cfconv(dual, w, OTHER, INDEX, NUM_ROWS)

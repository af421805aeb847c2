"""Claims about the shifted softplus, compiled and not."""

import decimal

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from popgeo.ops import shifted_softplus

X = torch.cat([torch.linspace(-120, 120, 5001), torch.linspace(-1, 1, 1001)])


def test_three_values_worked_out_by_hand(native):
    out = shifted_softplus(torch.tensor([0.0, 1.0, -1000.0]))
    # ln(e/2 + 1/2) = ln(1.859141) = 0.620115; ln(1/2) = -0.693147
    assert_close(out, torch.tensor([0.0, 0.620115, -0.693147]), rtol=1e-5, atol=1e-6)
    assert out[0] == 0


def test_float32_is_exact_to_its_last_bits(native):
    exact = torch.nn.functional.softplus(X.double()) - torch.tensor(2.0, dtype=torch.float64).log()
    assert ((shifted_softplus(X).double() - exact).abs() <= 3e-7 * exact.abs().clamp(min=1)).all()


def test_float64_is_exact_to_its_last_bits(native):
    x = torch.cat([torch.linspace(-700, 700, 301), torch.linspace(-2, 2, 301)]).double().requires_grad_()
    out = shifted_softplus(x)
    (slope,) = torch.autograd.grad(out.sum(), x)
    with decimal.localcontext(decimal.Context(prec=40)):
        powers = [decimal.Decimal(value).exp() for value in x.tolist()]
        exact = torch.tensor([float(((1 + e) / 2).ln()) for e in powers], dtype=x.dtype)
        sigmoid = torch.tensor([float(e / (1 + e)) for e in powers], dtype=x.dtype)
    assert_close(out, exact, rtol=4e-16, atol=0 if native == "compiled" else 4e-16)
    assert_close(slope, torch.where(x > -600, sigmoid, 0), rtol=4e-16, atol=0)


def test_the_slope_is_the_sigmoid_and_its_slope_too(native):
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(shifted_softplus(x).sum(), x, create_graph=True)
    assert_close(first, torch.sigmoid(X), rtol=1e-6, atol=1e-6)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert_close(second, torch.sigmoid(X) * torch.sigmoid(-X), rtol=1e-5, atol=1e-6)


def test_both_orders_of_gradient_pass_gradcheck(native):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(shifted_softplus, x)
    assert torch.autograd.gradgradcheck(shifted_softplus, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_stays_visible(native, value: float, dtype: torch.dtype):
    assert not shifted_softplus(torch.tensor([value], dtype=dtype)).isfinite().any()


def test_a_transposed_input_keeps_its_order(native):
    x = torch.randn(5, 7)
    assert_close(shifted_softplus(x.T), shifted_softplus(x).T)


def test_capture_sees_one_op_each_way():
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(shifted_softplus(x).sum(), x)[0]

    program = make_fx(step, tracing_mode="fake")(torch.randn(3, requires_grad=True))
    calls = [str(node.target) for node in program.graph.nodes if "popgeo" in str(node.target)]
    assert calls == ["popgeo.shifted_softplus.default", "popgeo.shifted_softplus_backward.default"]

"""Exponentials and slopes that are exact zeros well above the denormal range."""

import math

import pytest
import torch
from torch.testing import assert_close

from popgeo.ops import scatter_log_softmax, scatter_logsumexp, scatter_softmax, shifted_softplus
from popgeo.ops.exp_or_zero import exp_or_zero, least_exponent, sigmoid_or_zero
from tests.support.denormals import DenormalsMade

FLOATS = [torch.float32, torch.float64, torch.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 1000])
def test_from_the_floor_down_it_is_zero_and_above_it_what_torch_makes(dtype: torch.dtype, size: int):
    # One number takes torch's scalar code, a thousand its vectors; both must round to the same side of the threshold.
    least = least_exponent(dtype)
    for function, torchs in ((exp_or_zero, torch.exp), (sigmoid_or_zero, torch.sigmoid)):
        for low in (least, 1.2 * least, 1e4 * least, -math.inf):
            assert (function(torch.full((size,), low, dtype=dtype)) == 0).all()
        for high in (0.99 * least, -1.0, 0.0, 3.0, math.inf, math.nan):
            x = torch.full((size,), high, dtype=dtype)
            assert_close(function(x), torchs(x), rtol=0, atol=0, equal_nan=True)


def test_float16_keeps_the_small_numbers_that_it_has():
    x = torch.linspace(-17, 0, 200, dtype=torch.float16)
    assert_close(exp_or_zero(x), x.exp(), rtol=0, atol=0)


def test_values_have_torchs_slopes_and_zeros_have_none():
    x = torch.tensor([-700.0, -601.0, -599.0, -3.0, 0.5], dtype=torch.float64, requires_grad=True)
    for function in (exp_or_zero, sigmoid_or_zero):
        assert torch.autograd.gradcheck(function, x)
        assert torch.autograd.gradgradcheck(function, x)
    (slope,) = torch.autograd.grad(exp_or_zero(x).sum(), x)
    assert_close(slope, torch.where(x > -600.0, x.exp(), 0.0).detach(), rtol=1e-12, atol=0)


SCORES = torch.tensor([0.0, -59.0, -75.0, -95.0, -torch.inf, -200.0])


@pytest.mark.parametrize("function", [scatter_softmax, scatter_log_softmax, scatter_logsumexp])
def test_softmax_makes_no_denormal_numbers_in_either_direction(function):
    src, index = SCORES.clone().requires_grad_(), torch.tensor([0, 0, 0, 0, 0, 1])
    with DenormalsMade() as made:
        out = function(src, index, dim_size=2)
        torch.autograd.grad(out[out.isfinite()].square().sum(), src)
    assert made.num_results
    assert made.found == []


def test_the_activation_makes_no_denormal_numbers_in_either_direction(native: str):
    x = torch.linspace(-110, 10, 1201, requires_grad=True)
    with DenormalsMade() as made:
        (slope,) = torch.autograd.grad(shifted_softplus(x).sum(), x)
    assert made.found == []
    assert (slope[x < -60] == 0).all()
    assert_close(slope, torch.sigmoid(x.detach()), rtol=1e-5, atol=1e-25)

"""Claims about bases and envelopes."""

import pytest
import torch
import torch_geometric.nn.models.schnet as pyg
from torch.testing import assert_close

from popgeo.nn import CosineEnvelope, GaussianSmearing, PolynomialEnvelope, ShiftedSoftplus

R = torch.linspace(0, 6, 601, dtype=torch.float64)


def test_gaussians_equal_pygs_where_they_are_not_denormal():
    assert_close(GaussianSmearing(0.0, 5.0, 20)(R), pyg.GaussianSmearing(0.0, 5.0, 20)(R), rtol=1e-12, atol=1e-37)


@pytest.mark.parametrize("envelope", [CosineEnvelope, PolynomialEnvelope])
@pytest.mark.parametrize("cutoff", [4.0, 5.0, 6.0, 7.3, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_envelope_starts_at_one_falls_and_is_exactly_zero_from_the_cutoff_on(envelope, cutoff, dtype):
    r = torch.linspace(0, 1, 101, dtype=dtype) * cutoff
    out = envelope(cutoff)(r)
    assert out[0] == 1
    assert (out.diff() <= 1e-6).all()
    assert (envelope(cutoff)(torch.tensor([cutoff, cutoff + 1.0], dtype=dtype)) == 0).all()


def test_the_polynomial_ends_with_two_flat_derivatives():
    r = torch.tensor([5.0 - 1e-4], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(PolynomialEnvelope(5.0)(r), r, create_graph=True)
    (second,) = torch.autograd.grad(first, r)
    assert abs(float(first.detach())) < 1e-6
    assert abs(float(second)) < 1e-3


@pytest.mark.parametrize("p", [1, 2, 5, 6, 7])
def test_the_polynomial_is_that_of_the_paper_and_takes_no_powers(p):
    d = R / 5.0
    paper = 1 - (p + 1) * (p + 2) / 2 * d**p + p * (p + 2) * d ** (p + 1) - p * (p + 1) / 2 * d ** (p + 2)
    assert_close(PolynomialEnvelope(5.0, p)(R), torch.where(d < 1, paper, 0.0))
    traced = torch.fx.symbolic_trace(PolynomialEnvelope(5.0, p))
    assert not [node for node in traced.graph.nodes if "pow" in str(node.target)]


def test_both_forms_of_the_activation_agree_where_the_fast_one_is_finite():
    x = torch.linspace(-60, 60, 241)
    assert_close(ShiftedSoftplus(stable=False)(x), ShiftedSoftplus()(x), rtol=1e-5, atol=1e-6)
    assert ShiftedSoftplus(stable=False)(torch.tensor(100.0)).isinf()
    assert ShiftedSoftplus()(torch.tensor(100.0)).isfinite()


def test_one_gaussian_has_no_width_and_is_refused():
    with pytest.raises(ValueError, match="num_gaussians is 1"):
        GaussianSmearing(num_gaussians=1)

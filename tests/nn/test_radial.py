"""Claims about bases and envelopes."""

import pytest
import torch
import torch_geometric.nn.models.schnet as pyg
from torch.testing import assert_close

from popgeo.nn import CosineEnvelope, GaussianSmearing, PolynomialEnvelope, SchNet, ShiftedSoftplus
from tests.support.denormals import DenormalsMade

R = torch.linspace(0, 6, 601, dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "floor"), [(torch.float32, 1e-26), (torch.float64, 1e-260)])
def test_gaussians_equal_pygs_and_are_exactly_zero_where_those_are_below_a_floor(dtype, floor):
    r = R.to(dtype)
    found, pygs = GaussianSmearing(0.0, 5.0, 50).to(dtype)(r), pyg.GaussianSmearing(0.0, 5.0, 50).to(dtype)(r)
    assert_close(found, pygs, rtol=1e-12 if dtype is torch.float64 else 1e-5, atol=floor)
    assert (found[pygs < floor / 10] == 0).all()
    assert ((found == 0) | (found > floor / 10)).all()


def test_gaussians_have_the_slopes_of_pygs_and_none_where_they_are_zero():
    r = torch.tensor([0.5, 2.0, 5.0], dtype=torch.float64)

    def slopes(smearing: torch.nn.Module) -> list[torch.Tensor]:
        x = r.clone().requires_grad_()
        (first,) = torch.autograd.grad(smearing.double()(x).cos().sum(), x, create_graph=True)
        return [first.detach(), *torch.autograd.grad(first.sum(), x)]

    assert_close(slopes(GaussianSmearing(0.0, 5.0, 50)), slopes(pyg.GaussianSmearing(0.0, 5.0, 50)))
    far = torch.tensor([0.0], requires_grad=True)
    narrow = GaussianSmearing(4.0, 5.0, 50)
    (first,) = torch.autograd.grad(narrow(far).sum(), far, create_graph=True)
    (second,) = torch.autograd.grad(first, far)
    assert float(first.detach()) == float(second) == 0


class Given(torch.nn.Module):
    """An interaction graph with given edges."""

    def __init__(self, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> None:
        super().__init__()
        self.edges = edge_index, edge_weight

    def forward(self, pos: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.edges


def test_a_checkpoint_of_pygs_predicts_the_same_to_rounding():
    torch.manual_seed(0)
    peer = pyg.SchNet(16, 16, 2, 50, 6.0)
    ours = SchNet(16, 16, 2, 50, 6.0)
    ours.load_state_dict(peer.state_dict())
    z, pos = torch.randint(1, 9, (12,)), 2 * torch.randn(12, 3)
    apart = torch.cdist(pos, pos)
    edges = (torch.triu((apart < 6.0), diagonal=1)).nonzero().t()
    edges = torch.cat([edges, edges.flip(0)], 1)
    peer.interaction_graph = Given(edges, apart[edges[0], edges[1]])
    assert (ours.distance_expansion(apart[edges[0], edges[1]]) == 0).float().mean() > 0.3
    assert_close(ours(z, pos, edge_index=edges), peer(z, pos), rtol=2e-6, atol=2e-6)


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


@pytest.mark.parametrize("p", [1, 2, 6, 40])
def test_the_powers_of_the_polynomial_skip_what_is_denormal(p):
    r = torch.logspace(-38, 0, 400, dtype=torch.float64).float() * 5.0
    r.requires_grad_()
    with DenormalsMade() as made:
        torch.autograd.grad(PolynomialEnvelope(5.0, p)(r[40:]).sum(), r)
    assert made.num_results > 10
    assert made.found == []


def test_both_forms_of_the_activation_agree_where_the_fast_one_is_finite():
    x = torch.linspace(-60, 60, 241)
    assert_close(ShiftedSoftplus(stable=False)(x), ShiftedSoftplus()(x), rtol=1e-5, atol=1e-6)
    assert ShiftedSoftplus(stable=False)(torch.tensor(100.0)).isinf()
    assert ShiftedSoftplus()(torch.tensor(100.0)).isfinite()


def test_one_gaussian_has_no_width_and_is_refused():
    with pytest.raises(ValueError, match="num_gaussians is 1"):
        GaussianSmearing(num_gaussians=1)

"""No model makes denormal numbers, which can slow processors down a hundred times."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from popgeo.nn import GaussianSmearing, SchNet, mse_loss
from tests.contracts.test_models import EACH_MODEL, Molecules, make_batch, make_model, pad, predict
from tests.support.denormals import DenormalsMade

CUTOFF = 5.0


def make_sharp_model(name: str) -> nn.Module:
    """Return a contract model in float32, with Gaussians of distances as narrow as in published models."""
    model = make_model(name, torch.float32)
    if isinstance(model, SchNet):
        model.distance_expansion = GaussianSmearing(0.0, CUTOFF, 50)
        for block in model.interactions:
            block.mlp[0] = nn.Linear(50, block.mlp[0].out_features)
    return model


def batch_around_the_cutoff() -> Molecules:
    """Return padded molecules; in one, atoms are just below, at and beyond the cutoff from the first atom."""
    batch = make_batch(sizes=(6, 5, 1))
    limit = torch.tensor(CUTOFF)
    below, above = limit.nextafter(limit - 1), limit.nextafter(limit + 1)
    along = torch.stack([0 * limit, limit - 1e-3, below, limit, above, limit + 1e-3])
    pos = batch.pos.clone()
    pos[:6] = along.unsqueeze(1) * torch.tensor([1.0, 0.0, 0.0])
    return pad(replace(batch, pos=pos), nodes=9, edges=20, graphs=2)


def train_once(model: nn.Module, batch: Molecules) -> list[Tensor]:
    """Return the gradients of a loss by parameters and by inputs."""
    batch = replace(batch, x=batch.x.requires_grad_(), pos=batch.pos.requires_grad_())
    out = predict(model, batch)
    loss = mse_loss(out, torch.ones_like(out), batch.graphs_mask)
    inputs = [*model.parameters(), batch.x, batch.pos]
    return list(torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True))


@EACH_MODEL
def test_no_activation_and_no_gradient_is_denormal(name: str, native: str):
    model, batch = make_sharp_model(name), batch_around_the_cutoff()
    with DenormalsMade() as made:
        gradients = train_once(model, batch)
    assert made.num_results > 50
    assert made.found == []
    assert all(gradient.isfinite().all() for gradient in gradients)


class Clamped(GaussianSmearing):
    """Gaussians with a lower limit that is a denormal number."""

    def forward(self, dist: Tensor) -> Tensor:
        return torch.exp((self.coeff * (dist.reshape(-1, 1) - self.offset).square()).clamp(min=-87.0))


def test_the_floor_of_one_denormal_number_would_be_seen():
    model, batch = make_sharp_model("SchNet, pairs"), batch_around_the_cutoff()
    model.distance_expansion = Clamped(0.0, CUTOFF, 50)
    with DenormalsMade() as made:
        train_once(model, batch)
    assert made.found

"""Every model of the library trains on tiles as the fast engine does, its operations divided over them."""

import pytest
import torch
from torch import Tensor

from popgeo.ipu import IpuTarget, TileExact, training_model
from tests.contracts.test_models import MODELS, Training, make_batch, make_model, pad

SMALL = IpuTarget(name="small", num_tiles=5, memory_per_tile=2**20, clock=1e9, float32_macs=16, float16_macs=64)

# What runs on one tile: biases of pairs are written by two indices at once, for which there is no lowering.
ON_ONE_TILE = dict.fromkeys(("GPS, pack, biased", "GPS++"), ("aten.index_put.default",))


@pytest.mark.parametrize("name", MODELS)
def test_training_on_tiles_equals_the_fast_engine(name):
    batch = vars(pad(make_batch((3, 1)), nodes=2, edges=3, graphs=1))
    model = Training(make_model(name), batch["num_graphs"])
    tensors = {key: value for key, value in batch.items() if isinstance(value, Tensor)}
    step = training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)).compile(tensors)
    exact = TileExact(step, SMALL)
    torch.testing.assert_close(exact(tensors), step(tensors))
    held = exact.state_dict()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(held[key], parameter.detach(), rtol=1e-7, atol=1e-9)
    assert exact.program.fallbacks == ON_ONE_TILE.get(name, ())

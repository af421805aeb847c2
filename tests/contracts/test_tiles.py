"""Every model trains compiled as in eager PyTorch, and on tiles as in the fast engine."""

import copy

import torch
from torch import Tensor
from torch.testing import assert_close

from popgeo.ipu import IpuTarget, TileExact, training_model
from tests.contracts.test_models import EACH_MODEL, Training, make_batch, make_model, pad

SMALL = IpuTarget(name="small", num_tiles=3, memory_per_tile=2**20, clock=1e9, float32_macs=16, float16_macs=64)
RATE = 2.0**10  # so large that an update is the gradient up to rounding, since the weights are negligible

# Operations on one tile: biases of pairs are written with two indices at once, which has no lowering.
ON_ONE_TILE = dict.fromkeys(("GPS, pack, biased", "GPS++"), ("aten.index_put.default",))


def step_inputs(sizes: tuple[int, ...], seed: int) -> dict[str, Tensor]:
    """Return the tensors of a padded batch."""
    batch = vars(pad(make_batch(sizes, seed), nodes=7, edges=7, graphs=2))
    return {key: value for key, value in batch.items() if isinstance(value, Tensor)}


@EACH_MODEL
def test_a_step_compiled_for_other_data_trains_as_eager_pytorch_does_and_so_do_tiles(name: str):
    model = Training(make_model(name), num_graphs=5)
    eager = copy.deepcopy(model)
    step = training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=RATE)).compile(
        step_inputs((5, 1, 4), seed=0)
    )
    exact, inputs = TileExact(step, SMALL), step_inputs((4, 1, 5), seed=1)
    on_tiles, loss, expected = exact(inputs), step(inputs), eager(inputs)
    expected.backward()
    torch.optim.SGD(eager.parameters(), lr=RATE).step()
    assert_close(loss, expected, rtol=1e-8, atol=1e-9)
    assert_close(on_tiles, loss)
    held, trained = exact.state_dict(), eager.state_dict()
    for key, value in (*model.named_parameters(), *model.named_buffers()):
        value = value.detach()
        assert_close(value, trained[key], rtol=1e-8, atol=1e-9, msg=lambda words, key=key: f"{key}: {words}")
        assert_close(held[key], value, rtol=1e-7, atol=1e-9, msg=lambda words, key=key: f"{key} on tiles: {words}")
    assert exact.program.fallbacks == ON_ONE_TILE.get(name, ())

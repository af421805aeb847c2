"""A step brings a moving average of the weights up to date as `update_parameters` after each update does."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from popgeo.engine.compile_step import compile_step
from popgeo.engine.step_options import StepOptions
from tests.support.fake_cuda import install
from tests.support.small_models import GraphConvolutions, eager_step, make_batch

pytestmark = pytest.mark.filterwarnings("ignore:.*takes means over all rows")
KINDS: dict[str, dict[str, Any]] = {
    "mean": {},
    "moving": {"multi_avg_fn": get_ema_multi_avg_fn(0.75)},
    "one by one": {"avg_fn": get_ema_avg_fn(0.75)},
    "with buffers": {"multi_avg_fn": get_ema_multi_avg_fn(0.75), "use_buffers": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_an_average_within_a_step_is_that_after_eager_steps(backend: str, kind: str, monkeypatch: pytest.MonkeyPatch):
    cuda = install(monkeypatch)
    torch.manual_seed(0)
    model = GraphConvolutions().double()
    twin = copy.deepcopy(model)
    own, expected = (AveragedModel(one, **KINDS[kind]) for one in (model, twin))
    optimizer, other = (torch.optim.SGD(one.parameters(), lr=2**-5) for one in (model, twin))
    step = compile_step(model, optimizer, backend=backend, average=own)
    for seed in range(6):
        step(**make_batch(seed))
        eager_step(twin, other, make_batch(seed))
        expected.update_parameters(twin)
    torch.testing.assert_close(dict(own.state_dict()), dict(expected.state_dict()), rtol=1e-9, atol=1e-12)
    assert own.n_averaged == 6
    assert [graph.replays for graph in cuda.graphs] == ([3] if backend == "cuda" else [])


class Falling(nn.Linear):
    """A model whose only weight has a gradient of 1."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum()


def test_each_update_of_a_call_is_averaged():
    model = Falling(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average, optimizer = AveragedModel(model), torch.optim.SGD(model.parameters(), lr=1.0)
    step = compile_step(model, optimizer, options=StepOptions(device_iterations=3), average=average)
    step(torch.ones(3, 1))
    assert model.weight.item() == -3
    assert average.module.weight.item() == pytest.approx(-(1 + 2 + 3) / 3)


def test_an_average_of_another_model_is_refused():
    model, other = nn.Linear(1, 1), nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match=r"average has 1 parameters and the model 2, .*AveragedModel\(model"):
        compile_step(model, optimizer, average=AveragedModel(other))


def test_a_model_is_no_average():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"average is of type Linear\. Pass torch\.optim\.swa_utils\.AveragedModel"):
        compile_step(model, optimizer, average=nn.Linear(2, 1))

"""Every backend trains alike, and wrong arguments are refused."""

import copy
import shutil

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import Tensor, nn

import popgeo
from popgeo.engine.compile_step import compile_forward, compile_step
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.step_options import StepOptions
from tests.support.small_models import ContinuousFilters, make_batch

COMPILERS = [shutil.which(name) for name in ("g++", "clang++", "c++")]
needs_compiler = pytest.mark.skipif(not any(COMPILERS), reason="inductor needs a C++ compiler, and there is none")


class Net(nn.Module):
    """Batch norm, dropout, and a loss among other results."""

    def __init__(self) -> None:
        super().__init__()
        # A bias before the norm has no gradient but rounding, which Adam would make large.
        self.first, self.norm, self.last = nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        h = nn.functional.dropout(self.norm(self.first(x)).relu(), 0.25, self.training)
        predicted = self.last(h).float()
        return {"predicted": predicted, "loss": (predicted - y).square().mean()}


def make_net() -> tuple[Net, torch.optim.Optimizer, Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    twin = copy.deepcopy(net)
    return net, torch.optim.Adam(net.parameters(), lr=0.01), twin, torch.optim.Adam(twin.parameters(), lr=0.01)


def train_both(step: CompiledStep, twin: Net, optimizer: torch.optim.Optimizer, autocast: torch.dtype | None) -> None:
    """Train six steps compiled and eager, with the same seed of dropout, and compare the losses."""
    x = torch.randn(6, 16, 3, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(7)
    losses = [step(x=one, y=one.sum(1, keepdim=True))["loss"] for one in x]
    torch.manual_seed(7)
    for one, loss in zip(x, losses, strict=True):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            wanted = twin(one, one.sum(1, keepdim=True))["loss"]
        wanted.backward()
        optimizer.step()
        close = {"rtol": 1e-5, "atol": 1e-6} if autocast is None else {"rtol": 2e-2, "atol": 1e-2}
        torch.testing.assert_close(loss, wanted.detach(), **close)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=str)
def test_on_the_processor_a_step_trains_as_eager_code_does(autocast: torch.dtype | None):
    net, own, twin, optimizer = make_net()
    options = StepOptions(random_seed=7, loss_scaling=1.0 if autocast is None else 256.0)
    step = compile_step(net, own, (torch.zeros(16, 3), torch.zeros(16, 1)), options=options, autocast=autocast)
    train_both(step, twin, optimizer, autocast)
    close = {"rtol": 1e-4, "atol": 1e-5} if autocast is None else {"rtol": 5e-2, "atol": 5e-2}
    torch.testing.assert_close(net.last.weight, twin.last.weight, **close)
    torch.testing.assert_close(net.norm.running_mean, twin.norm.running_mean, **close)


def test_schnet_learns_under_autocast():
    torch.manual_seed(0)

    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            self.schnet = popgeo.SchNet(8, 8, 1, 8, 5.0, popgeo.KNNInteractionGraph(2, 5.0))

        def forward(self, z, pos, batch):
            return (self.schnet(z, pos, batch, num_graphs=3).float() - 1).square().mean()

    model = Energy()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    step = compile_step(model, optimizer, autocast=torch.bfloat16)
    given = torch.tensor([8, 1, 1, 6, 1, 0]), torch.randn(6, 3), torch.tensor([0, 0, 0, 1, 1, 2])
    losses = [float(step(*given)) for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]


def test_dropout_is_refused_where_inductor_makes_nan_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("popgeo.engine.inductor._LOSES_DROPOUT", True)
    net, own, *_ = make_net()
    with pytest.raises(ValueError, match=r"before torch 2\.12\. Update torch, or use backend='cpu'"):
        compile_step(net, own, backend="inductor")(torch.zeros(16, 3), torch.zeros(16, 1))


@needs_compiler
@pytest.mark.skipif(torch.__version__ < "2.12", reason="refused: inductor makes NaN of dropout before torch 2.12")
@inductor_config.patch({"cpp.simdlen": 1})  # without vectors its programs compile sooner
def test_inductor_is_handed_the_captured_step_and_trains_as_eager_code_does():
    net, own, twin, optimizer = make_net()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    step = compile_step(
        net, own, (torch.zeros(16, 3), torch.zeros(16, 1)), "inductor", options=StepOptions(random_seed=7)
    )
    train_both(step, twin, optimizer, None)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs  # dynamo traced nothing
    torch.testing.assert_close(net.last.weight, twin.last.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net.norm.running_mean, twin.norm.running_mean, rtol=1e-5, atol=1e-6)
    assert "operations through inductor" in repr(step)


def test_the_contract_is_that_of_training_model():
    outcomes = []
    for door in (popgeo.training_model, popgeo.compile_step):
        torch.manual_seed(0)
        model = ContinuousFilters().double()
        optimizer = torch.optim.Adam(model.parameters())
        options = popgeo.Options(device_iterations=2, gradient_accumulation=1, output_mode="all", num_threads=1)
        batch = {name: torch.cat([x, x]) for name, x in make_batch(0).items()}
        if door is popgeo.training_model:
            step = door(model, options, optimizer)
        else:
            step = door(model, optimizer, batch, options=options)
        outcomes.append([*step(**batch), *model.state_dict().values(), optimizer.state_dict()["state"][0]["exp_avg"]])
    for one, other in zip(*outcomes, strict=True):
        assert torch.equal(one, other)


def test_a_forward_pass_follows_the_weights_that_are_trained():
    net, own, *_ = make_net()
    x, y = torch.randn(16, 3), torch.randn(16, 1)
    forward = compile_forward(net.eval(), (x, y))
    step = compile_step(net.train(), own, (x, y))
    step(x, y)
    net.eval()
    torch.testing.assert_close(forward(x, y)["predicted"], net(x, y)["predicted"].detach())


def test_reset_takes_other_shapes_and_keeps_weights():
    net, own, *_ = make_net()
    step = compile_step(net, own)
    step(torch.zeros(4, 3), torch.zeros(4, 1))
    with pytest.raises(ValueError, match=r"shape.*call reset\(\)"):
        step(torch.zeros(5, 3), torch.zeros(5, 1))
    before = net.first.weight.clone()
    step.reset()
    assert torch.equal(net.first.weight, before)
    step(torch.randn(5, 3), torch.zeros(5, 1))
    assert not torch.equal(net.first.weight, before)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"backend": "gpu"}, r"backend is 'gpu'; it is one of 'cpu', 'inductor', 'cuda'"),
        ({"autocast": torch.int8}, r"autocast is torch\.int8; it is torch\.bfloat16"),
        ({"optimizer": "Adam"}, r"optimizer is a str; pass one over the model's parameters, torch\.optim\.Adam\("),
        ({"optimizer": torch.optim.SGD}, r"optimizer is the class SGD; pass one over the model's parameters, SGD\("),
        ({"optimizer": None}, r"To compile a forward pass alone, call popgeo\.compile_forward"),
        ({"model": len}, r"model is a builtin_function_or_method"),
        (
            {"options": popgeo.Options(replication_factor=2), "backend": "inductor"},
            r"does not support replication_factor",
        ),
        ({"options": popgeo.Options(floating_point_exceptions=True), "backend": "inductor"}, r"floating_point_exc"),
        ({"options": StepOptions(device_iterations=3)}, r"must be a multiple of 3"),
    ],
    ids=["backend", "autocast", "name", "class", "none", "model", "replicas", "exceptions", "batch"],
)
def test_what_is_wrong_is_said_at_the_door(asked: dict, message: str):
    net, own, *_ = make_net()
    given = {"model": net, "optimizer": own, "example_batch": (torch.zeros(4, 3), torch.zeros(4, 1)), **asked}
    with pytest.raises(ValueError, match=message):
        compile_step(**given)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"device_iterations": 0}, r"device_iterations is 0"),
        ({"gradient_accumulation": True}, r"gradient_accumulation is True"),
        ({"loss_scaling": 0.0}, r"loss_scaling is 0\.0; it must be positive"),
        ({"reduction": "median"}, r"reduction is 'median'; it must be one of 'mean', 'sum'"),
        ({"output_mode": "every_n", "output_period": 2}, r"a call runs 1 steps"),
    ],
    ids=str,
)
def test_options_are_checked(asked: dict, message: str):
    with pytest.raises(ValueError, match=message):
        StepOptions(**asked)


def test_a_forward_pass_accumulates_nothing():
    with pytest.raises(ValueError, match="no gradients to accumulate"):
        compile_forward(nn.Linear(1, 1), options=StepOptions(gradient_accumulation=2))

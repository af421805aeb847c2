"""Optimizers show and load their state under PopART's names, as PopTorch's checkpoints do."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from popgeo.compat import poptorch


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 2)

    def forward(self, x):
        y = self.lin(x)
        return y, poptorch.identity_loss(y, reduction="sum")


X = torch.tensor([[1.0, -2.0, 0.5]])
KINDS = {
    "SGD": {"momentum": 0.9}, "Adam": {}, "AdamW": {"bias_correction": False}, "LAMB": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
}  # fmt: skip


def trained(kind, calls, model=None, state=None, **settings):
    model = Line() if model is None else model
    optimizer = getattr(poptorch.optim, kind)(model.parameters(), **{"lr": 0.05, **KINDS[kind], **settings})
    if state is not None:
        optimizer.load_state_dict(state)
    step = poptorch.trainingModel(model, optimizer=optimizer)
    step.compile(X)
    for _ in range(calls):
        step(X)
    return model, optimizer, step


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_has_state_by_poparts_names_alone_goes_on_as_if_there_had_been_no_break(kind):
    model, optimizer, step = trained(kind, 3)
    file = io.BytesIO()
    torch.save({**optimizer.state_dict(), "state": {}}, file)  # as a run on an IPU writes it
    file.seek(0)
    other = copy.deepcopy(model)
    state = torch.load(file)
    assert state["ipu_state"].keys() >= {"Accl1___lin.weight", "Accl1___lin.bias"}
    other, resumed, again = trained(kind, 0, other, state)
    for name, part in state["ipu_state"].items():
        assert_close(resumed.state_dict()["ipu_state"][name], part)
    for _ in range(2):
        step(X), again(X)
    assert_close(dict(other.named_parameters()), dict(model.named_parameters()))


def test_state_and_numbers_are_shown_from_the_compilation_on_and_are_those_of_that_moment():
    model = Line()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.05, weight_decay=0.025, loss_scaling=0.75)
    step = poptorch.trainingModel(model, optimizer=optimizer)
    assert optimizer.state_dict()["ipu_state"] is optimizer.state_dict()["ipu_param"] is None
    step.compile(X)
    first = optimizer.state_dict()
    step(X)
    optimizer.param_groups[0]["lr"] = 0.5
    later = optimizer.state_dict()
    assert first["ipu_state"]["Accl1___lin.weight"].abs().sum() == 0
    assert_close(later["ipu_state"]["Accl1___lin.weight"], 0.1 * X.expand(2, 3), atol=0.01, rtol=0)
    assert later["ipu_state"]["Step___lin.bias"] == 1
    for state, rate in ((first, 0.05), (later, 0.5)):
        assert_close(state["ipu_param"]["learningRate___specific___lin.bias"], torch.tensor(rate))
    assert_close(first["ipu_param"]["weightDecay___specific___lin.bias"], torch.tensor(0.025))
    assert_close(first["ipu_param"]["lossScaling_FLOAT"], torch.tensor(0.75))


def test_the_numbers_of_sgd_are_those_that_popart_computes_with_and_it_keeps_nothing_without_momentum():
    settings = {"momentum": 0, "weight_decay": 0.025, "loss_scaling": 0.75}
    _, optimizer, _ = trained("SGD", 1, **settings)
    state = optimizer.state_dict()
    assert state["ipu_state"] == {}
    assert_close(state["ipu_param"]["scaledLearningRate0___specific___lin.bias"], torch.tensor(0.05 / 0.75))
    assert_close(state["ipu_param"]["weightDecayScaleFactor0___specific___lin.bias"], torch.tensor(1 - 0.05 * 0.025))


@pytest.mark.parametrize("older", ["", "model."])
def test_a_part_of_a_state_changes_that_part_and_what_no_optimizer_keeps_is_refused(older):
    model, optimizer, _ = trained("Adam", 2)
    state = optimizer.state_dict()
    kept = state["ipu_state"].pop("Accl2___lin.bias").clone()
    state["ipu_state"] = {
        name.replace("___", f"___{older}"): part
        for name, part in (state["ipu_state"] | {"Accl1___lin.bias": torch.tensor([7.0, 8.0])}).items()
    }
    optimizer.load_state_dict(state)
    now = optimizer.state_dict()["ipu_state"]
    assert_close(now["Accl1___lin.bias"], torch.tensor([7.0, 8.0]))
    assert_close(now["Accl2___lin.bias"], kept)
    state["ipu_state"]["Accl1___other"] = torch.zeros(1)
    says = r"ipu_state has Accl1___other, which Adam does not have .* it has Accl1___lin.bias"
    with pytest.raises(ValueError, match=says):
        optimizer.load_state_dict(state)
    for _ in range(2):  # before the first compilation, and before the next one
        with pytest.raises(poptorch.Error, match=says):
            trained("Adam", 0, copy.deepcopy(model), state)


def test_a_parameter_of_a_module_that_is_called_model_keeps_its_own_state():
    model = nn.ModuleDict({"model": nn.Linear(2, 1), "lin": nn.Linear(2, 1)})
    optimizer = poptorch.optim.Adam(model.parameters())
    optimizer.use_names({p: name for name, p in model.named_parameters()}, None)
    older = {"Accl1___model.model.bias": torch.ones(1), "Accl1___model.lin.bias": torch.tensor([2.0])}
    optimizer.load_state_dict({**optimizer.state_dict(), "ipu_state": older})
    state = optimizer.state_dict()["ipu_state"]
    assert (state["Accl1___model.bias"].item(), state["Accl1___lin.bias"].item()) == (1.0, 2.0)


def test_an_optimizer_of_a_model_that_is_compiled_for_no_machine_has_no_such_state():
    model = Line()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.05)
    poptorch.trainingModel(model, poptorch.Options().useOfflineIpuTarget(), optimizer).compile(X)
    assert optimizer.state_dict()["ipu_state"] is None

"""A compiled step follows changes of its model, or refuses them."""

import copy
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import popgeo
from popgeo import compile_forward, compile_step
from popgeo.ipu import CompiledStep, training_model


class Model(nn.Module):
    """A model with one example of each kind of attribute that its owner may change."""

    gain, of_all = 1.0, 1.0
    of_class: ClassVar[dict[str, float]] = {"scale": 1.0}

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(3, 3), nn.Linear(3, 3), nn.Dropout(0.5).eval()
        self.factor, self.kind, self.mask, self.unread = 2.0, "sin", torch.tensor([1.0, 0.0, 1.0]), 0
        self.single = torch.ones(1)
        self.layers, self.act = nn.ModuleList([nn.Linear(3, 3)]), torch.tanh
        self.register_buffer("shift", torch.ones(3))
        self.weights = {"energy": 1.0, "parts": {"forces": [1.0, 2.0]}}
        self.config, self.moved = SimpleNamespace(slope=1.0, inner=SimpleNamespace(power=1)), [torch.zeros(3)]

    def scaled(self, x: Tensor) -> Tensor:
        x = x * self.weights["energy"] * self.weights["parts"]["forces"][1] * self.config.slope
        return x**self.config.inner.power * self.gain * self.of_all * self.of_class["scale"] + self.moved[0]

    def forward(self, x: Tensor) -> Tensor:
        x = self.scaled(x)
        x = self.drop(self.second(self.act(self.first(x)))) * self.mask * self.factor * self.single + self.shift
        for layer in self.layers:
            x = layer(x)
        if hasattr(self, "extra"):
            x = x + self.extra
        return (getattr(torch, self.kind)(x)).square().sum()


class Negative(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


def clips(gradient: Tensor) -> Tensor:
    return gradient * 0.25


CHANGES: dict[str, Callable[[Model], object]] = {
    "a weight is frozen": lambda m: m.first.weight.requires_grad_(False),
    "a layer is frozen": lambda m: m.second.requires_grad_(False),
    "a number": lambda m: setattr(m, "factor", 3.0),
    "a word": lambda m: setattr(m, "kind", "cos"),
    "a function": lambda m: setattr(m, "act", torch.relu),
    "a tensor is replaced": lambda m: setattr(m, "mask", torch.tensor([0.0, 1.0, 1.0])),
    "a tensor of one element is replaced": lambda m: setattr(m, "single", torch.full((1,), 3.0)),
    "a tensor is written to": lambda m: m.mask.fill_(0.5),
    "a buffer is replaced": lambda m: setattr(m, "shift", torch.zeros(3)),
    "a buffer of another shape": lambda m: setattr(m, "shift", torch.zeros(1)),
    "a submodule is replaced": lambda m: setattr(m, "second", nn.Identity()),
    "a submodule is added": lambda m: m.layers.append(nn.Tanh()),
    "a submodule is removed": lambda m: m.layers.__delitem__(0),
    "a bias is removed": lambda m: setattr(m.first, "bias", None),
    "a number in a dictionary": lambda m: m.weights.update(energy=3.0),
    "a number in a list of a dictionary": lambda m: m.weights["parts"]["forces"].__setitem__(1, 3.0),
    "a number in an object": lambda m: setattr(m.config, "slope", 3.0),
    "a number in an object of an object": lambda m: setattr(m.config.inner, "power", 2),
    "a tensor in a list": lambda m: m.moved.__setitem__(0, torch.ones(3)),
    "a layer is hidden by an attribute": lambda m: vars(m).update(second=nn.Identity()),
    "a weight is hidden by an attribute": lambda m: vars(m.first).update(weight=torch.ones(3, 3)),
    "a number that the class has": lambda m: setattr(m, "gain", 3.0),
    "a method of the class": lambda m: setattr(m, "scaled", lambda x: -x),
    "a number of the class": lambda m: setattr(type(m), "of_all", 3.0),
    "a number in a dictionary of the class": lambda m: type(m).of_class.update(scale=3.0),
    "an attribute appears": lambda m: setattr(m, "extra", 1.0),
    "a forward is replaced": lambda m: setattr(m.second, "forward", lambda x: 2 * x),
    "a forward hook": lambda m: m.second.register_forward_hook(lambda module, given, made: made + 1),
    "a forward pre-hook": lambda m: m.second.register_forward_pre_hook(lambda module, given: (given[0] + 1,)),
    "a backward hook": lambda m: m.second.register_full_backward_hook(lambda module, given, made: (given[0] * 2,)),
    "a class": lambda m: setattr(m.second, "__class__", Negative),
    "a weight lies otherwise in the same memory": lambda m: setattr(m.first.weight, "data", m.first.weight.data.t()),
    "a layer of another shape": lambda m: setattr(m.layers, "0", nn.Linear(3, 1)),
}


def outcomes(model: Model, run: Callable[[Tensor], Tensor]) -> list[Tensor]:
    losses = [run(torch.linspace(-1, 1, 6).view(2, 3)).detach() for _ in range(2)]
    return [*losses, *(tensor.detach().clone() for tensor in model.state_dict().values())]


def eager(model: Model, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss

    return run


def both(change: Callable[[Model], object], trains: bool) -> tuple[CompiledStep, list[list[Tensor]]]:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = type("Own", (Model,), {"of_class": {"scale": 1.0}})()  # whose class no other test shares
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if compiled:
            run = step = compile_step(model, optimizer) if trains else compile_forward(model)
        else:
            run = eager(model, optimizer) if trains else model
        before = outcomes(model, run)
        torch.manual_seed(1)
        change(model)
        found.append([*before, *outcomes(model, run)])
    return step, found


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_after_compiling_has_the_effect_that_it_has_in_eager(change: str):
    _, (expected, found) = both(CHANGES[change], trains=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        "a number",
        "a number in a dictionary",
        "a number that the class has",
        "a forward hook",
        "a bias is removed",
        "a submodule is added",
    ],
)
def test_a_forward_pass_follows_too(change: str):
    _, (expected, found) = both(CHANGES[change], trains=False)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The model is in the mode of eval")
def test_what_the_model_does_not_look_at_and_what_is_set_to_the_same_leave_the_step_as_it_is():
    model = Model()
    step, x = compile_forward(model), torch.ones(2, 3)
    step(x)
    bound = step.bound
    model.unread, model.factor, model.note, model.gain = 5, float("2"), "new", float("1")
    model.weights["energy"], model.moved[:] = float("1"), list(model.moved)
    nn.Linear(1, 1).register_forward_hook(lambda *given: None)
    model.second.weight.data.mul_(2)
    model.train().eval()
    torch.testing.assert_close(step(x), model(x).detach())
    assert step.bound is bound


def test_a_hook_that_is_removed_and_a_weight_that_is_trained_again_are_followed():
    model = Model()
    handle = model.second.register_forward_hook(lambda module, given, made: made + 1)
    model.first.requires_grad_(False)
    step, x = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1)), torch.ones(2, 3)
    step(x)
    handle.remove()
    model.first.requires_grad_(True)
    before, expected = model.first.weight.clone(), model(x).detach()
    torch.testing.assert_close(step(x), expected)
    assert not torch.equal(before, model.first.weight)


def test_a_submodule_set_to_another_mode_is_followed_and_a_mode_of_the_whole_model_is_not():
    model = Model().eval()
    step, x = compile_forward(model), torch.ones(2, 3)
    fixed = step(x)
    bound = step.bound
    model.train()
    assert torch.equal(step(x), fixed)
    assert step.bound is bound
    model.eval()
    model.drop.train()
    assert len({float(step(x)) for _ in range(8)}) > 1
    step.eval()
    assert torch.equal(step(x), fixed)
    assert not model.drop.training


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.tail = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.norm(self.line(x))).pow(3).mean()


MODES: dict[str, Callable[[Normed], object]] = {
    "a norm is frozen": lambda m: m.norm.eval(),
    "a norm is thawed": lambda m: m.norm.train(),
    "a container is frozen": lambda m: m.tail.eval(),
    "a part of it is thawed": lambda m: m.tail[1].train(),
    "the container is thawed": lambda m: m.tail.train(),
    "an evaluation comes between": lambda m: m.eval().train(),
    "the norm is frozen again": lambda m: m.norm.eval(),
}


@pytest.mark.parametrize("first", [None, "a norm is frozen", "a container is frozen"])
def test_freezing_and_thawing_a_module_has_the_effect_that_it_has_in_eager(first: str | None):
    torch.manual_seed(0)
    model = Normed()
    same = copy.deepcopy(model)
    run = eager(same, torch.optim.SGD(same.parameters(), lr=0.05))
    step, forward = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.05)), compile_forward(model)
    for change in (first, *MODES):  # the first before the first call
        for one in (model, same) if change else ():
            MODES[change](one)
        x = torch.randn(8, 3)
        torch.testing.assert_close(step(x), run(x).detach())
        with torch.no_grad():
            torch.testing.assert_close(forward(x), same(x))
        torch.testing.assert_close(model.state_dict(), same.state_dict(), rtol=1e-4, atol=1e-5)


def test_another_default_type_has_the_effect_that_it_has_in_eager():
    class Padded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, torch.ones(2)])

    model, x = Padded(), torch.ones(3)
    step = compile_forward(model)
    for kind in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(kind)
        try:
            made = step(x)
            assert made.dtype == model(x).dtype == kind
        finally:
            torch.set_default_dtype(torch.float32)


def test_what_is_captured_anew_goes_on_with_its_random_numbers_and_its_updates():
    seen = []
    for change in (False, True):
        torch.manual_seed(0)
        model, rates = Model(), []
        model.drop.train()
        step = training_model(
            model, optimizer=torch.optim.Adam(model.parameters()), learning_rate=lambda n, r=rates: r.append(n) or 0.01
        )
        losses = []
        for number in range(4):
            if change and number == 2:
                model.factor = 2.0 + 1e-12
            losses.append(step(torch.ones(2, 3)))
        seen.append([torch.stack(losses), *model.state_dict().values()])
        assert sorted(set(rates)) == [0, 1, 2, 3]
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other)


def test_other_shapes_are_refused_also_where_the_model_has_changed_and_the_step_is_compiled_at_the_next_call():
    model = Model()
    step = compile_forward(model, torch.ones(2, 3))
    model.factor = 5.0
    with pytest.raises(ValueError, match=r"`x` is float32\[4, 3\], but the model was compiled for float32\[2, 3\]"):
        step(torch.ones(4, 3))
    torch.testing.assert_close(step(torch.ones(2, 3)), model(torch.ones(2, 3)).detach())


def test_a_change_that_cannot_be_captured_is_refused_each_time():
    model = Model()
    step, x = compile_forward(model), torch.ones(2, 3)
    step(x)
    model.act = lambda x: x[x > 0]
    for _ in range(2):
        with pytest.raises(ValueError, match="Remedy"):
            step(x)
    model.act = torch.relu
    torch.testing.assert_close(step(x), model(x).detach())


def test_a_forward_of_a_class_that_is_replaced_is_followed(monkeypatch):
    model, x = Model(), torch.ones(2, 3)
    step = compile_forward(model)
    step(x)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x @ self.weight)
    torch.testing.assert_close(step(x), model(x).detach())


def test_autocast_around_a_call_has_the_effect_that_it_has_in_eager():
    model, x = Model(), torch.linspace(-1, 1, 6).view(2, 3)
    step = compile_forward(model, x)
    exact = step(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(step(x), model(x).detach())
        assert not torch.equal(step(x), exact)
    assert torch.equal(step(x), exact)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_training_step_without_gradients_is_refused_and_changes_nothing(without):
    model, x = Model(), torch.ones(2, 3)
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), x)
    step(x)
    before = model.first.weight.clone()
    with without(), pytest.raises(ValueError, match=r"popgeo.compile_forward\(model.eval\(\)\)"):
        step(x)
    assert torch.equal(before, model.first.weight)
    step(x)
    assert not torch.equal(before, model.first.weight)


def test_a_step_with_a_torchscript_part_runs_again_and_again():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(torch.jit.script(nn.Linear(3, 3)), nn.Linear(3, 1))
    x = torch.ones(4, 3)
    step = popgeo.compile_forward(model)
    assert torch.equal(step(x), step(x))
    torch.testing.assert_close(step(x), model(x))

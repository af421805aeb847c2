"""Parameters in the optimizer that the model uses and no module registers are refused, by group and shape."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import popgeo


class Net(nn.Module):
    """A registered layer, and a layer and a scale that are not registered."""

    def __init__(self, place: str) -> None:
        super().__init__()
        layer, scale = nn.Linear(3, 3), nn.Parameter(torch.zeros(()))
        self.extra, self.out = [*layer.parameters(), scale], nn.Linear(3, 1)
        kept = {
            "list": [layer, scale],
            "tuple": (layer, scale),
            "dictionary": {"a": layer, "b": {"c": scale}},
            "object": SimpleNamespace(layer=layer, scale=scale),
        }
        self.kept = kept.get(place)
        self.place, self.closure = place, lambda: (layer, scale)

    def forward(self, x: Tensor) -> Tensor:
        if self.place == "closure":
            layer, scale = self.closure()
        elif self.place == "dictionary":
            layer, scale = self.kept["a"], self.kept["b"]["c"]
        else:
            layer, scale = vars(self.kept).values() if self.place == "object" else self.kept
        return (self.out(layer(x).tanh()) * torch.exp(-scale)).square().mean() + scale


PLACES = ["list", "tuple", "dictionary", "object", "closure"]


@pytest.mark.parametrize("make", [popgeo.compile_step, lambda *given: popgeo.training_model(given[0], None, given[1])])
@pytest.mark.parametrize("place", PLACES)
def test_they_are_refused_by_group_and_shape_and_nothing_changes(place: str, make):
    model = Net(place)
    groups = [{"params": model.out.parameters()}, {"params": model.extra, "lr": 0.01}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    before = [p.clone() for p in (*model.parameters(), *model.extra)]
    told = (
        re.escape("does not register: [3, 3], [3], [] in parameter group 1. ") + ".*nn.ModuleList or nn.ParameterList"
    )
    with pytest.raises(ValueError, match=told):
        make(model, optimizer)(torch.ones(2, 3))
    assert all(map(torch.equal, before, (*model.parameters(), *model.extra)))
    # A step would not notice that a frozen parameter is trained later.
    for p in model.extra:
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="does not register"):
        make(model, optimizer)(torch.ones(2, 3))


def test_a_kept_step_does_not_pass_for_one_that_trains_them(tmp_path):
    model, options = Net("list"), popgeo.StepOptions(cache_dir=tmp_path)
    own = torch.optim.SGD(model.out.parameters(), lr=0.1)
    popgeo.compile_step(model, own, options=options)(torch.ones(2, 3))
    both = torch.optim.SGD([*model.out.parameters(), *model.extra], lr=0.1)
    with pytest.raises(ValueError, match="does not register"):
        popgeo.compile_step(model, both, options=options)(torch.ones(2, 3))


def test_what_the_model_does_not_use_may_be_held_as_in_eager_code():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).tanh()).square().mean()

    models = [Tied(), Tied()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]  # holds b.weight from then on
    step, x = popgeo.compile_step(models[0], optimizers[0]), torch.ones(3, 2)
    for number in range(4):
        if number == 2:
            for model in models:
                model.b.weight = model.a.weight
        step(x)
        optimizers[1].zero_grad()
        models[1](x).backward()
        optimizers[1].step()
    for mine, theirs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("module", [nn.ModuleList, nn.ParameterList, nn.ParameterDict])
def test_the_remedy_trains_them(module):
    names = ("weight", "bias")

    class Registered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer, out = nn.Linear(3, 3), nn.Linear(3, 1)
            parameters = [layer.weight, layer.bias]
            held = {
                nn.ModuleList: [layer],
                nn.ParameterList: parameters,
                nn.ParameterDict: dict(layer.named_parameters()),
            }
            self.held, self.out = module(held[module]), out

        def forward(self, x: Tensor) -> Tensor:
            if module is nn.ModuleList:
                return self.out(self.held[0](x)).square().mean()
            weight, bias = (self.held[key] for key in (names if module is nn.ParameterDict else (0, 1)))
            return self.out(nn.functional.linear(x, weight, bias)).square().mean()

    model = Registered()
    before = [p.clone() for p in model.parameters()]
    popgeo.compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1))(torch.ones(2, 3))
    assert not any(map(torch.equal, before, model.parameters()))

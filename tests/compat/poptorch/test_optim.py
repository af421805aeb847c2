"""PopTorch's optimizers compared with numbers by hand and with torch, and with float16 weights."""

import copy

import pytest
import torch
from torch import Tensor, nn

from popgeo.compat import poptorch
from popgeo.compat.account import ACCOUNT
from popgeo.compat.poptorch import optim
from popgeo.ipu import Options, TileExact, training_model

SETTINGS = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True, "weight_decay": 0.1}),
]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.second(self.first(x).relu()) - y).square().mean()


def make(dtype: torch.dtype = torch.float32) -> tuple[Net, Tensor, Tensor]:
    torch.manual_seed(0)
    return Net().to(dtype), torch.randn(8, 4).to(dtype), torch.randn(8, 2).to(dtype)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().float() for p in model.parameters()])


def step_on(optimizer: torch.optim.Optimizer, weight: nn.Parameter, gradient: float) -> None:
    weight.grad = torch.full_like(weight, gradient)
    optimizer.step()


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_over_float32_they_are_torch_s_own(name: str, settings: dict[str, float]):
    (mine, x, y), (theirs, *_) = make(), make()
    training = training_model(mine, None, getattr(optim, name)(mine.parameters(), **settings))
    reference = getattr(torch.optim, name)(theirs.parameters(), **settings)
    for _ in range(3):
        training(x, y)
        reference.zero_grad()
        theirs(x, y).backward()
        reference.step()
    torch.testing.assert_close(weights(mine), weights(theirs))
    assert training.update.is_captured


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_over_float16_they_follow_torch_s_over_float32(name: str, settings: dict[str, float]):
    results = []
    for dtype, made in ((torch.float16, optim), (torch.float32, torch.optim)):
        model, x, y = make(dtype)
        training = training_model(model, None, getattr(made, name)(model.parameters(), **settings))
        for _ in range(5):
            training(x, y)
        results.append(weights(model))
        if made is optim:
            state = [part for one in training._recipe.optimizer.state.values() for part in one.values()]
            assert {part.dtype for part in state if isinstance(part, Tensor)} == {torch.float32}
    torch.testing.assert_close(*results, rtol=0.02, atol=0.01)


def test_adam_over_float16_weights_stays_finite():
    """In torch's own update, a square root is 0 in float16, and the step is divided by it."""
    model, x, y = make(torch.float16)
    training = training_model(model, None, optim.Adam(model.parameters(), lr=0.01))
    first = float(training(x, y))
    for _ in range(60):
        last = float(training(x, y))
    assert last < 0.6 * first


def test_without_bias_correction_the_first_step_is_that_of_the_raw_moments():
    weight = nn.Parameter(torch.ones(1))
    optimizer = optim.AdamW([weight], lr=1.0, betas=(0.5, 0.75), eps=0.0, weight_decay=0.0, bias_correction=False)
    step_on(optimizer, weight, 4.0)
    assert weight.item() == pytest.approx(1 - 2 / 2)  # 0.5 * 4 divided by the root of 0.25 * 16
    step_on(optimizer, weight, 4.0)
    assert weight.item() == pytest.approx(0 - 3 / 7**0.5)


def test_tensorflow_s_rmsprop_adds_eps_before_the_root():
    weight = nn.Parameter(torch.ones(1))
    step_on(optim.RMSprop([weight], lr=0.5, alpha=0.0, eps=9.0, use_tf_variant=True), weight, 4.0)
    assert weight.item() == pytest.approx(1 - 0.5 * 4 / 5)


def test_lamb_scales_its_step_by_the_norms():
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))  # norm 5; the step is the sign of the gradient, norm root 2
    optimizer = optim.LAMB([weight], lr=0.1, eps=0.0, weight_decay=0.0)
    step_on(optimizer, weight, 7.0)
    move = 0.1 * 5 / 2**0.5
    torch.testing.assert_close(weight.data, torch.tensor([3 - move, 4 - move]))
    limited = nn.Parameter(torch.tensor([3.0, 4.0]))
    step_on(optim.LAMB([limited], lr=0.1, eps=0.0, weight_decay=0.0, max_weight_norm=2.0), limited, 7.0)
    torch.testing.assert_close(limited.data, torch.tensor([3 - move * 2 / 5, 4 - move * 2 / 5]))


def test_lamb_trains_a_compiled_model_as_by_itself():
    (mine, x, y), (theirs, *_) = make(), make()
    training = training_model(mine, None, optim.LAMB(mine.parameters(), lr=0.01))
    reference = optim.LAMB(theirs.parameters(), lr=0.01)
    for _ in range(2):
        training(x, y)
        reference.zero_grad()
        theirs(x, y).backward()
        reference.step()
    torch.testing.assert_close(weights(mine), weights(theirs))


def test_scaled_velocities_give_the_same_weights():
    made = []
    for scaling in (1.0, 4.0):
        model, x, y = make()
        chosen = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, velocity_scaling=scaling)
        training = training_model(model, None, chosen)
        for _ in range(3):
            training(x, y)
        made.append((weights(model), chosen.state[model.first.bias]["momentum_buffer"]))
    torch.testing.assert_close(made[0][0], made[1][0])
    torch.testing.assert_close(4 * made[0][1], made[1][1])


def test_gradients_of_float16_weights_are_joined_in_float32():
    """1,024 plus a hundred times 0.5 is 1,074 in float32. In float16 the halves would be lost."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, dtype=torch.float16))

        def forward(self, x: Tensor) -> Tensor:
            return (self.weight * x).sum()

    x = torch.cat([torch.tensor([[2048.0, 1.0]]), torch.full((99, 2), 0.5)]).half()
    model = Sum()
    options = Options(gradient_accumulation=100, reduction="sum")
    training_model(model, options, optim.SGD(model.parameters(), lr=1.0))(x)
    assert model.weight[0].item() == -2098  # 2,097.5 rounded to float16


def test_tiles_join_wide_gradients_too():
    model, x, y = make(torch.float16)
    options = Options(gradient_accumulation=2, loss_scaling=8.0)
    training = training_model(model, options, optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    training(x, y)
    exact = TileExact(training)
    torch.testing.assert_close(exact(x, y), training(x, y))
    torch.testing.assert_close(exact.state_dict(), dict(model.state_dict()))


def test_attributes_survive_a_copy_and_defaults_are_constant():
    optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, loss_scaling=3.0, max_grad_norm=float("inf"))
    twin = copy.copy(optimizer)
    assert (twin.loss_scaling, twin.max_grad_norm, twin.accum_type) == (3.0, None, torch.float32)
    attributes = twin.variable_attrs
    assert attributes.isConstant("momentum")
    assert not attributes.isConstant("lr")
    attributes.markAsConstant("lr")
    assert attributes.isConstant("lr")
    with pytest.raises(ValueError, match="Unknown attribute 'speed'"):
        attributes.markAsVariable("speed")


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW])
def test_amsgrad_is_refused(kind: type):
    with pytest.raises(ValueError, match="amsgrad"):
        kind([nn.Parameter(torch.ones(1))], amsgrad=True)


def test_other_types_of_moments_are_refused():
    with pytest.raises(ValueError, match=r"either torch.float32 or torch.float16; accum_type is torch.bfloat16"):
        optim.Adam([nn.Parameter(torch.ones(1))], accum_type=torch.bfloat16)


def test_stochastic_rounding_moves_half_weights_by_steps_that_nearest_rounding_loses():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64, dtype=torch.float16))

        def forward(self, x: Tensor) -> Tensor:
            return poptorch.identity_loss((self.weight * x).sum(), "none")

    moved = []
    for rounds in (False, True):
        model = Sum()
        options = poptorch.Options().deviceIterations(400).randomSeed(1)
        options.Precision.enableStochasticRounding(rounds)
        training = poptorch.trainingModel(model, options, optim.SGD(model.parameters(), lr=1e-4))
        training(torch.ones(400 * 64, dtype=torch.float16))
        moved.append(float(1 - model.weight.detach().float().mean()))
    assert moved[0] == 0
    assert moved[1] == pytest.approx(0.04, abs=0.004)
    assert ("Options.Precision.enableStochasticRounding", "honoured") in became()


def test_automatic_loss_scaling_starts_from_the_optimizer_s_own_scale():
    model, x, y = make()
    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(True)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return poptorch.identity_loss(self.net(x, y), "none")

    for scale, first in ((None, 65536.0), (32.0, 32.0)):
        chosen = optim.Adam(model.parameters(), lr=0.01, loss_scaling=scale)
        training = poptorch.trainingModel(Loss(), options, chosen)
        training(x, y)
        assert training.compiled.loss_scale.value == first
        training(x * 1e30, y)
        assert training.compiled.loss_scale.value == first / 2
    assert ("Options.Training.setAutomaticLossScaling", "honoured") in became()


@pytest.mark.parametrize("layer", [nn.Linear(4, 2), nn.Conv1d(4, 2, 1), nn.LayerNorm(4)], ids=lambda one: str(one)[:6])
def test_a_product_of_half_and_float_has_the_type_of_what_goes_in_unless_casting_to_float_is_asked_for(layer):
    half, single = torch.ones(1, 4, 4).half(), torch.ones(1, 4, 4)
    assert poptorch.inferenceModel(layer)(half).dtype is torch.float16
    assert poptorch.inferenceModel(copy.deepcopy(layer).half())(single).dtype is torch.float32
    options = poptorch.Options()
    options.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    if not isinstance(layer, nn.LayerNorm):  # torch itself computes it with half inputs and float weights
        assert poptorch.inferenceModel(layer, options)(half).dtype is torch.float32
    assert ("Options.Precision.halfFloatCasting", "honoured") in set(became())


def test_float_weights_train_on_half_data():
    class Fits(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x):
            return self.layer(x).square().mean()

    model = Fits()
    step = poptorch.trainingModel(model, optimizer=optim.SGD(model.parameters(), lr=0.1))
    losses = [step(torch.ones(2, 4).half()) for _ in range(10)]
    assert losses[0].dtype is torch.float16
    assert losses[-1] < 0.01 * losses[0] or losses[-1] < 1e-3
    assert model.layer.weight.dtype is torch.float32


def test_a_loaded_state_keeps_its_types():
    (model, x, y), (other, *_) = make(torch.float16), make(torch.float16)
    mine, theirs = (optim.Adam(one.parameters(), lr=0.01) for one in (model, other))
    training = training_model(model, None, mine)
    training(x, y)
    theirs.load_state_dict(copy.deepcopy(mine.state_dict()))
    other.load_state_dict(model.state_dict())
    going_on = training_model(other, None, theirs)
    assert theirs.state[other.first.weight]["exp_avg"].dtype is torch.float32
    training(x, y)
    going_on(x, y)
    assert torch.equal(weights(model), weights(other))


def became() -> list[tuple[str, str]]:
    return [(asked, treatment.value) for asked, (treatment, _) in ACCOUNT.items()]

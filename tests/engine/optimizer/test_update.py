"""Updates equal plain PyTorch for any optimizer, with its groups, schedule and state."""

import copy
import functools

import pytest
import torch
from torch import nn, optim

from popgeo.ipu import Options, training_model
from tests.support.small_models import ContinuousFilters, eager_step, make_batch


class MadeEarly(optim.Optimizer):
    """Optimizer that makes its state in its constructor, as Adagrad of torch 2.10 does."""

    elementwise = True

    def __init__(self, parameters, lr: float = 1e-2) -> None:
        super().__init__(parameters, {"lr": lr})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["sum"] = torch.full_like(p, 0.1)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                total = self.state[p]["sum"].addcmul_(p.grad, p.grad)
                p.addcdiv_(p.grad, total.sqrt(), value=-group["lr"])


OPTIMIZERS = {
    "sgd": functools.partial(optim.SGD, lr=1e-2),
    "momentum": functools.partial(optim.SGD, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": functools.partial(optim.Adam, lr=1e-2),
    "amsgrad": functools.partial(optim.Adam, lr=1e-2, amsgrad=True, weight_decay=1e-3),
    "adamw": functools.partial(optim.AdamW, lr=1e-2),
    "adamax": optim.Adamax,
    "nadam": optim.NAdam,
    "radam": functools.partial(optim.RAdam, lr=1e-2),
    "rmsprop": functools.partial(optim.RMSprop, lr=1e-3, centered=True, momentum=0.5),
    "rprop": optim.Rprop,
    "adagrad": optim.Adagrad,
    "adadelta": optim.Adadelta,
    "asgd": optim.ASGD,
    "adafactor": optim.Adafactor,
    "made early": MadeEarly,
}


def make_pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = ContinuousFilters().double()
    return model, copy.deepcopy(model)


def assert_same_weights(model: nn.Module, reference: nn.Module) -> None:
    torch.testing.assert_close(model.state_dict(), reference.state_dict(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_updates_as_in_pytorch(name):
    model, reference = make_pair()
    optimizer = OPTIMIZERS[name](reference.parameters())
    step = training_model(model, optimizer=OPTIMIZERS[name](model.parameters()))
    for seed in range(7):
        step(**make_batch(seed))
        eager_step(reference, optimizer, make_batch(seed))
    assert_same_weights(model, reference)


def grouped(model: ContinuousFilters) -> optim.Optimizer:
    filters = list(model.filters.parameters())
    known = {id(p) for p in filters}
    rest = [p for p in model.parameters() if id(p) not in known]
    return optim.Adam([{"params": filters, "lr": 1e-3, "weight_decay": 0.1}, {"params": rest}], lr=1e-2)


def test_groups_keep_their_own_settings_and_schedules_need_no_new_compile():
    model, reference = make_pair()
    mine, theirs = grouped(model), grouped(reference)
    schedules = [optim.lr_scheduler.StepLR(o, step_size=2, gamma=0.1) for o in (mine, theirs)]
    step = training_model(model, optimizer=mine)
    for seed in range(6):
        step(**make_batch(seed))
        eager_step(reference, theirs, make_batch(seed))
        for schedule in schedules:
            schedule.step()
        step.set_optimizer(mine)
    assert_same_weights(model, reference)


def test_a_callable_learning_rate_counts_updates_inside_a_call():
    rates = [0.1, 0.01, 0.001, 0.0]
    model, reference = make_pair()
    options = Options(device_iterations=2)
    step = training_model(
        model, options, optim.SGD(model.parameters(), lr=1.0), learning_rate=lambda update: rates[update]
    )
    optimizer = optim.SGD(reference.parameters(), lr=1.0)
    for seeds in [(0, 1), (2, 3)]:
        parts = [make_batch(seed) for seed in seeds]
        step(**{key: torch.cat([part[key] for part in parts]) for key in ("z", "pos", "edge_index", "batch", "y")})
        for seed, part in zip(seeds, parts, strict=True):
            optimizer.param_groups[0]["lr"] = rates[seed]
            eager_step(reference, optimizer, part)
    assert_same_weights(model, reference)


def test_gradients_are_clipped_over_all_parameters():
    model, reference = make_pair()
    step = training_model(model, Options(max_grad_norm=0.1), optim.SGD(model.parameters(), lr=1.0))
    optimizer = optim.SGD(reference.parameters(), lr=1.0)
    for seed in range(3):
        step(**make_batch(seed))
        optimizer.zero_grad()
        reference(**make_batch(seed))[1].backward()
        nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        optimizer.step()
    assert_same_weights(model, reference)


def test_loss_scaling_leaves_the_update_as_it_is():
    model, reference = make_pair()
    step = training_model(model, Options(loss_scaling=1024.0), optim.SGD(model.parameters(), lr=0.1))
    _, loss = step(**make_batch(0))
    optimizer = optim.SGD(reference.parameters(), lr=0.1)
    _, expected = eager_step(reference, optimizer, make_batch(0))
    torch.testing.assert_close(loss, expected)
    assert_same_weights(model, reference)


@pytest.mark.parametrize("name", ["momentum", "adam", "nadam", "adagrad"])
def test_state_goes_out_and_in_in_torchs_own_format(name):
    model, reference = make_pair()
    mine, theirs = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](reference.parameters())
    step = training_model(model, optimizer=mine)
    for seed in range(3):
        step(**make_batch(seed))
        eager_step(reference, theirs, make_batch(seed))
    torch.testing.assert_close(mine.state_dict()["state"], theirs.state_dict()["state"], rtol=1e-9, atol=1e-9)
    saved, weights = copy.deepcopy(theirs.state_dict()), copy.deepcopy(reference.state_dict())
    eager_step(reference, theirs, make_batch(3))
    step(**make_batch(7))  # changes the weights
    mine.load_state_dict(saved)
    step.load_state_dict(weights)
    step(**make_batch(3))
    assert_same_weights(model, reference)


def test_an_optimizer_that_runs_the_model_itself_is_refused():
    model, _ = make_pair()
    with pytest.raises(ValueError, match="LBFGS evaluates the model several times"):
        training_model(model, optimizer=optim.LBFGS(model.parameters()))(**make_batch(0))


def test_another_kind_of_optimizer_is_refused():
    model, _ = make_pair()
    step = training_model(model, optimizer=optim.SGD(model.parameters(), lr=0.1))
    step(**make_batch(0))
    with pytest.raises(ValueError, match="compiled with SGD, not Adam"):
        step.set_optimizer(optim.Adam(model.parameters()))


def test_parameters_that_the_optimizer_does_not_hold_stay():
    model, _ = make_pair()
    before = model.embedding.weight.detach().clone()
    step = training_model(model, optimizer=optim.SGD(model.readout.parameters(), lr=0.1))
    bias = model.readout.bias.detach().clone()
    step(**make_batch(0))
    assert torch.equal(model.embedding.weight, before)
    assert not torch.equal(model.readout.bias, bias)


class Scaled(nn.Module):
    """Model that multiplies by a scalar parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.linear = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scale * self.linear(x)).square().mean()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_without_dimensions_is_updated_as_in_pytorch(name):
    torch.manual_seed(0)
    model = Scaled()
    reference = copy.deepcopy(model)
    optimizer = OPTIMIZERS[name](reference.parameters())
    step = training_model(model, optimizer=OPTIMIZERS[name](model.parameters()))
    for _ in range(7):
        x = torch.randn(4, 3, dtype=torch.float64)
        step(x)
        optimizer.zero_grad()
        reference(x).backward()
        optimizer.step()
    assert_same_weights(model, reference)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_of_low_precision_train(dtype):
    model = ContinuousFilters().to(dtype)
    step = training_model(model, Options(loss_scaling=8.0), optim.SGD(model.parameters(), lr=0.01))
    losses = [float(step(**make_batch(0, dtype))[1]) for _ in range(20)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("name", "captured"), [("momentum", True), ("adam", True), ("radam", True), ("adafactor", False)]
)
def test_updates_run_as_captured_graphs_where_numbers_allow(name, captured):
    model, _ = make_pair()
    step = training_model(model, optimizer=OPTIMIZERS[name](model.parameters()))
    for seed in range(9):
        step(**make_batch(seed))
    assert step.report.update_captured is captured
    assert sum(cost.phase == "update" for cost in step.report.costs) >= 4

"""A dynamic loss scale equals GradScaler's in each update, and an update that overflows is skipped as a whole."""

import copy

import pytest
import torch
from torch import Tensor, nn

import popgeo
from popgeo import LossScaling, Options, StepOptions, training_model
from popgeo.engine.loss_scaling import LossScale, loss_scaling_of
from popgeo.ipu import TileExact


class Narrow(nn.Module):
    """A float16 product inside a float32 model; its gradients overflow for a large scale or a large input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        made = nn.functional.linear(hidden.half(), self.second.weight.half()).float() + self.second.bias
        return (made - y).square().mean()


def make_pair() -> tuple[Narrow, Narrow]:
    torch.manual_seed(0)
    model = Narrow()
    return model, copy.deepcopy(model)


def batch(step: int, broken: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator)
    return x, y * 1e6 if broken else y


RULE = LossScaling(initial=2.0**20, growth_interval=2)
BROKEN = (5, 6, 11)


def eager(model: Narrow, steps: int, joined: int = 1) -> tuple[list[float], torch.optim.Optimizer]:
    """Train by hand with torch's own scaler."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=RULE.initial, growth_interval=RULE.growth_interval)
    scales = []
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(joined):
            number = step * joined + part
            scaler.scale(model(*batch(number, number in BROKEN))).backward()
        scaler.unscale_(optimizer)
        for parameter in model.parameters():
            parameter.grad /= joined
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, optimizer


def assert_same(model: nn.Module, reference: nn.Module) -> None:
    torch.testing.assert_close(model.state_dict(), reference.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["ipu", "cpu"])
def test_scale_and_weights_are_grad_scaler_s_step_by_step(backend: str):
    model, reference = make_pair()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if backend == "ipu":
        training = training_model(model, Options(loss_scaling=RULE), optimizer)
    else:
        training = popgeo.compile_step(model, optimizer, options=StepOptions(loss_scaling=RULE))
    scales = []
    for step in range(14):
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
        skipped = 0 if step == 0 else training.loss_scale.skipped
        training(*batch(step, step in BROKEN))
        scales.append(training.loss_scale.value)
        if training.loss_scale.skipped > skipped:
            after = (model.state_dict(), optimizer.state_dict()["state"])
            torch.testing.assert_close(after, before, rtol=0, atol=0)
    expected, theirs = eager(reference, 14)
    assert scales == expected
    assert min(scales) < scales[-1]
    assert_same(model, reference)
    torch.testing.assert_close(optimizer.state_dict()["state"], theirs.state_dict()["state"], rtol=1e-4, atol=1e-6)
    assert f"loss scale {scales[-1]:,.6g}, {training.loss_scale.skipped} of 14 updates skipped" in repr(training)
    if backend == "ipu":
        assert "updates skipped" in str(training.report)
        assert training.loss_scale.updates - training.loss_scale.skipped == training.update.num_updates


@pytest.mark.parametrize("choices", [{"gradient_accumulation": 2}, {"replication_factor": 2}])
def test_one_overflow_among_joined_gradients_leaves_the_update_out(choices: dict[str, int]):
    model, reference = make_pair()
    options = Options(loss_scaling=RULE, device_iterations=2, **choices)
    training = training_model(model, options, torch.optim.Adam(model.parameters(), lr=0.01))
    for call in range(3):
        parts = [batch(4 * call + part, 4 * call + part in BROKEN) for part in range(4)]
        training(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
    scales, _ = eager(reference, 6, joined=2)
    assert training.loss_scale.value == scales[-1]
    assert_same(model, reference)


def test_a_checkpoint_goes_on_with_scale_counts_and_rule(tmp_path):
    def make():
        model, _ = make_pair()
        return training_model(model, Options(loss_scaling=RULE), torch.optim.Adam(model.parameters(), lr=0.01))

    first, second = make(), make()
    for step in range(12):
        if step == 7:
            first.save(tmp_path / "run")
        first(*batch(step, step in BROKEN))
    second.load(tmp_path / "run")
    for step in range(7, 12):
        second(*batch(step, step in BROKEN))
    assert second.loss_scale.state() == first.loss_scale.state()
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)


def test_gradients_are_clipped_after_they_are_divided():
    model, reference = make_pair()
    rule = LossScaling(initial=512.0)
    options = Options(loss_scaling=rule, max_grad_norm=0.1)
    dynamic = training_model(model, options, torch.optim.SGD(model.parameters(), lr=1.0))
    constant = training_model(
        reference, Options(loss_scaling=512.0, max_grad_norm=0.1), torch.optim.SGD(reference.parameters(), lr=1.0)
    )
    for step in range(3):
        dynamic(*batch(step))
        constant(*batch(step))
    torch.testing.assert_close(dynamic.state_dict(), constant.state_dict(), rtol=0, atol=0)


def test_nothing_is_compiled_again_when_the_scale_changes():
    model, _ = make_pair()
    training = training_model(model, Options(loss_scaling=RULE), torch.optim.SGD(model.parameters(), lr=0.1))
    training(*batch(0))
    compiled, runner = training.bound, training.bound.runner.usual
    for step in range(4):
        training(*batch(step, broken=True))
    assert training.loss_scale.skipped >= 4
    assert training.bound is compiled
    assert compiled.runner.usual is runner


def test_the_check_is_part_of_the_modelled_update():
    found = []
    for scaling in (8.0, "dynamic"):
        model, _ = make_pair()
        training = training_model(model, Options(loss_scaling=scaling))
        training.compile(*batch(0))
        found.append([cost.target for cost in training.report.costs if cost.phase == "update"])
    assert "aten.linalg_vector_norm.default" in set(found[1]) - set(found[0])
    assert "aten.div_.Scalar" in found[0] or "aten.div_.Tensor" in found[0]


def test_gradients_that_are_always_broken_are_an_error():
    model, _ = make_pair()
    rule = LossScaling(initial=4.0, smallest=1.0)
    training = training_model(model, Options(loss_scaling=rule), torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = batch(0)
    x[0, 0] = torch.nan
    training(x, y)
    training(x, y)
    with pytest.raises(FloatingPointError, match=r"even with a loss scale of 0.5; 3 of 3 updates were skipped"):
        training(x, y)


def test_half_models_train_where_a_constant_scale_overflows():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).half()

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return (self.model(x) - y).square().mean()

    whole = Loss()
    options = Options(loss_scaling="dynamic", optimizer_state_dtype=torch.float32)
    training = training_model(whole, options, torch.optim.Adam(whole.parameters(), lr=0.01))
    x, y = (part.half() for part in batch(0))
    losses = [float(training(x, y)) for _ in range(60)]
    assert training.loss_scale.skipped > 0
    assert losses[-1] < 0.3 * losses[0]


def test_tiles_refuse_it():
    model, _ = make_pair()
    training = training_model(model, Options(loss_scaling="dynamic"))
    training.compile(*batch(0))
    with pytest.raises(ValueError, match="compile with a constant loss_scaling"):
        TileExact(training)


@pytest.mark.parametrize("kind", [Options, StepOptions])
@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("automatic", "'dynamic' or a popgeo.LossScaling"),
        (True, "pass a positive number"),
        (float("inf"), "loss_scaling is inf"),
        (None, "loss_scaling is None"),
    ],
)
def test_other_scales_are_refused(kind: type, choice: object, message: str):
    with pytest.raises(ValueError, match=message):
        kind(loss_scaling=choice)


def test_an_infinity_cannot_be_met_and_be_an_error():
    with pytest.raises(ValueError, match="Choose a constant loss_scaling"):
        Options(loss_scaling="dynamic", floating_point_exceptions=True)


@pytest.mark.parametrize(
    "numbers",
    [{"initial": 0.0}, {"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"growth_interval": 0}, {"smallest": -1.0}],
)
def test_rules_that_make_no_sense_are_refused(numbers: dict[str, float]):
    with pytest.raises(ValueError, match=next(iter(numbers))):
        LossScaling(**numbers)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"initial": float("inf")}, "initial is inf; it must be positive"),
        ({"initial": float("nan")}, "initial is nan; it must be positive"),
        ({"growth_factor": float("inf")}, "growth_factor is inf; it must be above 1"),
        ({"backoff_factor": 0.0}, "backoff_factor is 0.0; it must be between 0 and 1"),
        ({"growth_interval": 2.0}, "growth_interval is 2.0; it must be an integer of at least 1"),
        ({"growth_interval": True}, "growth_interval is True"),
        ({"initial": 1.0, "smallest": 1.5}, "smallest is 1.5; it must be between 0 and the first scale"),
    ],
)
def test_numbers_just_outside_their_range_are_refused_in_words(numbers: dict[str, float], message: str):
    with pytest.raises(ValueError, match=f"LossScaling.{message}"):
        LossScaling(**numbers)


def test_numbers_at_the_ends_of_their_range_are_taken():
    rule = LossScaling(initial=1e-30, growth_factor=1.001, backoff_factor=0.999, growth_interval=1, smallest=1e-30)
    assert LossScaling(initial=1.0, smallest=0.0).smallest == 0
    assert rule.growth_interval == 1
    usual, scaler = LossScaling(), torch.amp.GradScaler("cpu")
    assert usual.initial == scaler.get_scale() == 65536
    assert usual.growth_factor == scaler.get_growth_factor()
    assert usual.backoff_factor == scaler.get_backoff_factor()
    assert usual.growth_interval == scaler.get_growth_interval()
    assert usual.smallest == 1 / 1024**2


def test_a_choice_is_a_positive_number_or_a_rule():
    rule = LossScaling(initial=4.0)
    assert loss_scaling_of(rule, "Options") is rule
    assert loss_scaling_of(0.5, "Options") == 0.5
    for choice, words in ((0, "it must be positive"), (-1.0, "it must be positive"), (True, "pass a positive number")):
        with pytest.raises(ValueError, match=f"^Mine.loss_scaling is {choice!r}; {words}"):
            loss_scaling_of(choice, "Mine")


def test_a_scale_stays_finite_and_counts_what_happened():
    scale = LossScale(LossScaling(initial=2.0**126, growth_interval=1, smallest=2.0**125))
    assert scale.state() == {"scale": 2.0**126, "good_updates": 0, "skipped": 0, "updates": 0}
    assert [scale.follow(overflowed=False) for _ in range(3)] == [True] * 3
    assert scale.value == 2.0**127  # twice that is infinite
    assert not scale.follow(overflowed=True)
    assert not scale.follow(overflowed=True)
    assert scale.state() == {"scale": 2.0**125, "good_updates": 0, "skipped": 2, "updates": 5}
    with pytest.raises(FloatingPointError, match=r"even with a loss scale of .*; 3 of 6 updates were skipped"):
        scale.follow(overflowed=True)
    slow = LossScale(LossScaling(initial=8.0, growth_interval=3))
    assert [slow.follow(overflowed=one) for one in (False, False, True, False, False)] == [
        True,
        True,
        False,
        True,
        True,
    ]
    assert slow.state() == {"scale": 4.0, "good_updates": 2, "skipped": 1, "updates": 5}
    other = LossScale(slow.rule)
    place = other.tensor
    other.restore(slow.state())
    assert other.state() == slow.state()
    assert other.tensor is place
    assert place == 4  # where the captured step reads it
    assert place.dtype is torch.float32
    assert place.shape == ()
    other.follow(overflowed=False)
    assert other.value == 8
    assert str(other) == "loss scale 8, 1 of 6 updates skipped"

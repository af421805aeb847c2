"""PopTorch's optimizers without a model, compared with torch in float64, plain loops and narrow moments."""

import inspect
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from popgeo import Options
from popgeo.compat.poptorch import optim
from popgeo.engine.optimizer.update import Update

STEPS = 4
MOMENTS = {"first_order_momentum_accum_type": torch.float16, "second_order_momentum_accum_type": torch.float16}


def gradients(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return one gradient per step."""
    return torch.randn(STEPS, *shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


def stepped(kind: type[torch.optim.Optimizer], *shape: int, dtype: torch.dtype = torch.float64, **settings: Any):
    """Return a weight after all steps, and its state."""
    weight = nn.Parameter(torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(2)))
    optimizer = kind([weight], **settings)
    for gradient in gradients(*shape, dtype=dtype):
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach(), optimizer.state[weight]


def assert_same(found: tuple[Tensor, dict[str, Any]], expected: tuple[Tensor, dict[str, Any]]) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-13)
    for key, part in expected[1].items():
        if part is not None:
            torch.testing.assert_close(found[1][key], part, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("momentum", [0, 0.9])
@pytest.mark.parametrize("maximize", [False, True])
def test_sgd_is_torch_s_whatever_its_velocity_is_kept_multiplied_by(momentum: float, maximize: bool):
    for dampening, decay, nesterov in itertools.product((0, 0.25), (0, 0.2), (False, True)):
        if nesterov and (dampening or not momentum):
            continue
        chosen = {"lr": 0.3, "momentum": momentum, "dampening": dampening, "weight_decay": decay, "nesterov": nesterov}
        weight, state = stepped(optim.SGD, 3, 2, **chosen, maximize=maximize, velocity_scaling=8.0)
        expected, theirs = stepped(torch.optim.SGD, 3, 2, **chosen, maximize=maximize)
        torch.testing.assert_close(weight, expected, rtol=1e-12, atol=1e-13)
        if momentum:
            torch.testing.assert_close(state["momentum_buffer"], 8 * theirs["momentum_buffer"], rtol=1e-12, atol=1e-13)


def test_a_velocity_of_half_is_scaled_before_it_is_rounded():
    """A velocity of 1e-8 is 0 in float16. Multiplied by 2^16 it is not."""
    for scaling, found in ((1.0, 0.0), (2.0**16, 1e-8 * 2**16)):
        weight = nn.Parameter(torch.ones(1))
        optimizer = optim.SGD(
            [weight], lr=1.0, momentum=0.5, velocity_scaling=scaling, velocity_accum_type=torch.float16
        )
        weight.grad = torch.full((1,), 1e-8)
        optimizer.step()
        velocity = optimizer.state[weight]["momentum_buffer"]
        assert velocity.dtype is torch.float16
        assert velocity.item() == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize("rounds", [False, True])
def test_a_velocity_of_half_is_rounded_at_random_where_weights_are(rounds: bool):
    """The mean of 1 and the next number of float16 is half way between both."""
    weights = {"weight": nn.Parameter(torch.zeros(4096).half())}
    optimizer = optim.SGD(weights.values(), lr=1.0, momentum=0.5, velocity_accum_type=torch.float16)
    options = Options(stochastic_rounding=rounds, gradient_accumulation=2, random_seed=1)
    update = Update(optimizer, weights, options)
    update.follow_memory()
    for number, gradient in enumerate((1.0, 1 + 2**-10)):
        update.gradients["weight"].fill_(gradient)
        update.accumulate(first=number == 0)
    update.apply()
    velocity = optimizer.state[weights["weight"]]["momentum_buffer"]
    assert velocity.dtype is torch.float16
    assert velocity.unique().tolist() == ([1, 1 + 2**-10] if rounds else [1])
    share = (velocity > 1).float().mean().item()
    assert share == pytest.approx(0.5 if rounds else 0, abs=0.04)


def test_tensorflow_s_rmsprop_is_a_plain_loop():
    for centered, maximize in itertools.product((False, True), (False, True)):
        value, state = stepped(
            optim.RMSprop, 1, lr=0.1, alpha=0.75, eps=0.5, weight_decay=0.25, momentum=0.5, centered=centered,
            use_tf_variant=True, maximize=maximize,
        )  # fmt: skip
        expected = torch.randn((1,), dtype=torch.float64, generator=torch.Generator().manual_seed(2)).item()
        mean = spread = velocity = 0.0
        for g in gradients(1).flatten().tolist():
            g = (-g if maximize else g) + 0.25 * expected
            spread = 0.75 * spread + 0.25 * g * g
            mean = 0.75 * mean + 0.25 * g if centered else 0.0
            velocity = 0.5 * velocity + 0.1 * g / math.sqrt(spread - mean * mean + 0.5)
            expected -= velocity
        assert value.item() == pytest.approx(expected, rel=1e-12)
        assert state["momentum_buffer"].item() == pytest.approx(velocity, rel=1e-12)
        assert state["step"].item() == STEPS


def plain_adam(given: list[float], step: int, corrects: bool, moments: list[list[float]]) -> list[float]:
    """Return the steps of Adam with betas of 0.5 and 0.75 and an eps of 0.125, without the learning rate."""
    made = []
    for number, g in enumerate(given):
        moments[0][number] = 0.5 * moments[0][number] + 0.5 * g
        moments[1][number] = 0.75 * moments[1][number] + 0.25 * g * g
        first = moments[0][number] / (1 - 0.5**step if corrects else 1)
        second = moments[1][number] / (1 - 0.75**step if corrects else 1)
        made.append(first / (math.sqrt(second) + 0.125))
    return made


@pytest.mark.parametrize("corrects", [False, True])
@pytest.mark.parametrize("limit", [None, 0.5, 100.0])
def test_lamb_and_adamw_are_plain_loops(corrects: bool, limit: float | None):
    chosen = {"lr": 0.1, "betas": (0.5, 0.75), "eps": 0.125, "weight_decay": 0.25, "bias_correction": corrects}
    values = torch.randn((2,), dtype=torch.float64, generator=torch.Generator().manual_seed(2)).tolist()
    plain, moments, same = list(values), [[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]
    for step, given in enumerate(gradients(2).tolist(), start=1):
        steps = plain_adam(given, step, corrects, moments)
        steps = [one + 0.25 * value for one, value in zip(steps, values, strict=True)]
        norm = math.hypot(*values) if limit is None else min(math.hypot(*values), limit)
        values = [v - 0.1 * norm / math.hypot(*steps) * one for v, one in zip(values, steps, strict=True)]
        steps = plain_adam(given, step, corrects, same)
        plain = [v * (1 - 0.1 * 0.25) - 0.1 * one for v, one in zip(plain, steps, strict=True)]
    lamb, _ = stepped(optim.LAMB, 2, **chosen, max_weight_norm=limit)
    adam, state = stepped(optim.AdamW, 2, **chosen)
    assert lamb.tolist() == pytest.approx(values, rel=1e-12)
    assert adam.tolist() == pytest.approx(plain, rel=1e-12)
    assert state["step"].item() == STEPS


def test_lamb_trusts_its_step_where_weights_are_zero_and_takes_none_where_that_is():
    weight = nn.Parameter(torch.zeros(2))
    optimizer = optim.LAMB([weight], lr=0.25, betas=(0.0, 0.0), eps=1.0, weight_decay=0.0)
    for given in ([1.0, -3.0], [0.0, 0.0]):
        weight.grad = torch.tensor(given)
        optimizer.step()
        assert weight.tolist() == [-0.25 * 1 / 2, 0.25 * 3 / 4]


@pytest.mark.parametrize(
    ("kind", "chosen", "narrow", "expected"),
    [
        ("SGD", {"momentum": 0.5}, {"velocity_accum_type": torch.float16}, ["momentum_buffer"]),
        ("Adam", {}, MOMENTS, ["exp_avg", "exp_avg_sq"]),
        ("AdamW", {"bias_correction": False}, MOMENTS, ["exp_avg", "exp_avg_sq"]),
        ("LAMB", {}, MOMENTS, ["exp_avg", "exp_avg_sq"]),
        ("RMSprop", {"centered": True, "momentum": 0.5}, MOMENTS, ["grad_avg", "momentum_buffer", "square_avg"]),
        ("RMSprop", {"use_tf_variant": True}, MOMENTS, ["square_avg"]),
        ("Adam", {}, {"second_order_momentum_accum_type": torch.float16}, ["exp_avg_sq"]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_state_is_kept_in_its_own_types_and_read_in_float32(kind, chosen, narrow, expected, dtype):
    chosen = {"lr": 0.1, **({} if kind == "SGD" else {"eps": 0.1}), **chosen}
    weight = nn.Parameter(torch.randn(64, generator=torch.Generator().manual_seed(2)).to(dtype))
    optimizer = getattr(optim, kind)([weight], **chosen, **narrow)
    for given in gradients(64, dtype=torch.float32):
        # The same step with all numbers in float32.
        reference = nn.Parameter(weight.detach().float())
        wide = getattr(optim, kind)([reference], **chosen)
        state = optimizer.state.get(weight, {})
        wide.state[reference].update({key: part.float().clone() for key, part in state.items()})
        weight.grad, reference.grad = given.to(dtype), given.to(dtype).float()
        optimizer.step()
        wide.step()
        assert torch.equal(weight, reference.to(dtype))
        state = optimizer.state[weight]
        assert sorted(key for key, part in state.items() if part.dtype is torch.float16) == expected
        for key, part in state.items():
            assert torch.equal(part, wide.state[reference][key].to(part.dtype))


def test_arguments_are_poptorch_s_by_name_and_by_place():
    """The arguments are those of PopTorch 3.4, and None by default."""
    adamw = inspect.signature(optim.AdamW)
    assert list(adamw.parameters) == [
        "params", "lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable",
        "differentiable", "fused", "loss_scaling", "bias_correction", "accum_type",
        "first_order_momentum_accum_type", "second_order_momentum_accum_type", "max_grad_norm",
    ]  # fmt: skip
    weight = nn.Parameter(torch.ones(1))
    assert optim.LAMB([weight], 0.5, (0.1, 0.2)).param_groups[0]["betas"] == (0.1, 0.2)
    with pytest.raises(TypeError, match="speed"):
        optim.Adam([weight], speed=3)
    with pytest.raises(ValueError, match="SGD needs a learning rate: pass lr"):
        optim.SGD([weight], momentum=0.5)

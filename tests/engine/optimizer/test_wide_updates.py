"""Updates worked out in float32: torch's own over float64, plain loops of numbers, and moments of narrower types."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from popgeo.engine.optimizer.wide_updates import adam, lamb, rmsprop, sgd, wide_gradient

STEPS = 4
KEPT = {"first_type": torch.float64, "second_type": torch.float64}


def gradients(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """One for each step."""
    return torch.randn(STEPS, *shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


def start(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(2))


def by_torch(kind: type[torch.optim.Optimizer], **settings: Any) -> tuple[Tensor, dict[str, Any]]:
    weight = nn.Parameter(start(3, 2))
    optimizer = kind([weight], **settings)
    for gradient in gradients(3, 2):
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach(), optimizer.state[weight]


def assert_same(weight: Tensor, state: dict[str, Any], expected: tuple[Tensor, dict[str, Any]]) -> None:
    torch.testing.assert_close(weight, expected[0], rtol=1e-12, atol=1e-13)
    for key, part in expected[1].items():
        if part is not None:
            torch.testing.assert_close(state[key], part, rtol=1e-12, atol=1e-13)


def test_sgd_is_torch_s_whatever_it_is_told():
    for momentum, dampening, decay, nesterov in itertools.product((0, 0.9), (0, 0.25), (0, 0.2), (False, True)):
        if nesterov and (dampening or not momentum):
            continue
        group = {
            "lr": 0.3, "momentum": momentum, "dampening": dampening, "weight_decay": decay, "nesterov": nesterov
        }  # fmt: skip
        weight, state = start(3, 2), {}
        for gradient in gradients(3, 2):
            sgd(weight, gradient, state, group, velocity_type=torch.float64, velocity_scaling=8.0)
        expected, theirs = by_torch(torch.optim.SGD, **group)
        torch.testing.assert_close(weight, expected, rtol=1e-12, atol=1e-13)
        if momentum:
            torch.testing.assert_close(state["momentum_buffer"], 8 * theirs["momentum_buffer"], rtol=1e-12, atol=1e-13)
        else:
            assert not state


@pytest.mark.parametrize(("decoupled", "kind"), [(False, torch.optim.Adam), (True, torch.optim.AdamW)])
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_adam_is_torch_s_with_either_decay(decoupled: bool, kind: type[torch.optim.Optimizer], decay: float):
    group = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": decay}
    weight, state = start(3, 2), {}
    for gradient in gradients(3, 2):
        adam(weight, gradient, state, group, decoupled=decoupled, bias_correction=True, **KEPT)
    assert_same(weight, state, by_torch(kind, **group))


def test_rmsprop_is_torch_s_whatever_it_is_told():
    for centered, momentum, decay in itertools.product((False, True), (0, 0.5), (0, 0.2)):
        group = {
            "lr": 0.1, "alpha": 0.75, "eps": 1e-2, "weight_decay": decay, "momentum": momentum, "centered": centered
        }  # fmt: skip
        weight, state = start(3, 2), {}
        for gradient in gradients(3, 2):
            rmsprop(weight, gradient, state, group, eps_in_root=False, **KEPT)
        assert_same(weight, state, by_torch(torch.optim.RMSprop, **group))


@pytest.mark.parametrize("centered", [False, True])
def test_tensorflow_s_rmsprop_is_a_plain_loop(centered: bool):
    group = {"lr": 0.1, "alpha": 0.75, "eps": 0.5, "weight_decay": 0.25, "momentum": 0.5, "centered": centered}
    weight, state, given = start(1), {}, gradients(1)
    value = weight.item()
    mean = spread = velocity = 0.0
    for g in given.flatten().tolist():
        g += 0.25 * value
        spread = 0.75 * spread + 0.25 * g * g
        mean = 0.75 * mean + 0.25 * g if centered else 0.0
        velocity = 0.5 * velocity + 0.1 * g / math.sqrt(spread - mean * mean + 0.5)
        value -= velocity
    for gradient in given:
        rmsprop(weight, gradient, state, group, eps_in_root=True, **KEPT)
    assert weight.item() == pytest.approx(value, rel=1e-12)
    assert state["momentum_buffer"].item() == pytest.approx(velocity, rel=1e-12)
    assert state["step"].item() == STEPS


def plain_adam(values: list[float], given: list[float], step: int, corrects: bool, moments: list[list[float]]):
    """The steps of Adam with betas of 0.5 and 0.75 and an eps of 0.125, before the rate."""
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
def test_lamb_and_adam_are_plain_loops(corrects: bool, limit: float | None):
    group = {"lr": 0.1, "betas": (0.5, 0.75), "eps": 0.125, "weight_decay": 0.25, "max_weight_norm": limit}
    mine, state, other, its = start(2), {}, start(2), {}
    values, plain = mine.tolist(), other.tolist()
    moments, same = [[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]
    for step, given in enumerate(gradients(2), start=1):
        lamb(mine, given, state, group, bias_correction=corrects, **KEPT)
        steps = plain_adam(values, given.tolist(), step, corrects, moments)
        steps = [one + 0.25 * value for one, value in zip(steps, values, strict=True)]
        norm = math.hypot(*values) if limit is None else min(math.hypot(*values), limit)
        values = [v - 0.1 * norm / math.hypot(*steps) * one for v, one in zip(values, steps, strict=True)]
        adam(other, given, its, group, decoupled=True, bias_correction=corrects, **KEPT)
        steps = plain_adam(plain, given.tolist(), step, corrects, same)
        plain = [v * (1 - 0.1 * 0.25) - 0.1 * one for v, one in zip(plain, steps, strict=True)]
    assert mine.tolist() == pytest.approx(values, rel=1e-12)
    assert other.tolist() == pytest.approx(plain, rel=1e-12)


def test_lamb_trusts_its_step_where_weights_are_zero_and_takes_none_where_that_is():
    group = {"lr": 0.25, "betas": (0.0, 0.0), "eps": 1.0, "weight_decay": 0.0, "max_weight_norm": None}
    weight = torch.zeros(2)
    kept = {"first_type": torch.float32, "second_type": torch.float32}
    lamb(weight, torch.tensor([1.0, -3.0]), {}, group, bias_correction=True, **kept)
    assert weight.tolist() == [-0.25 * 1 / 2, 0.25 * 3 / 4]
    lamb(weight, torch.zeros(2), {}, group, bias_correction=True, **kept)
    assert weight.tolist() == [-0.125, 0.1875]


def run(name: str, types: tuple[torch.dtype, torch.dtype], *given: Any) -> None:
    moments = {"first_type": types[0], "second_type": types[1]}
    if name == "sgd":
        sgd(*given, velocity_type=types[0], velocity_scaling=2.0)
    elif name == "adam":
        adam(*given, decoupled=False, bias_correction=True, **moments)
    elif name == "lamb":
        lamb(*given, bias_correction=True, **moments)
    else:
        rmsprop(*given, eps_in_root=False, **moments)


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "rmsprop"])
def test_state_is_kept_in_its_own_types_and_read_in_float32(name: str):
    """Two moments that each was rounded to, of half weights."""
    group: dict[str, Any] = {
        "lr": 0.1, "momentum": 0.5, "dampening": 0, "nesterov": False, "weight_decay": 0.25, "betas": (0.5, 0.75),
        "eps": 0.1, "max_weight_norm": None, "alpha": 0.75, "centered": True,
    }  # fmt: skip
    expected = {
        "sgd": {"momentum_buffer": torch.float16},
        "adam": {"exp_avg": torch.float16, "exp_avg_sq": torch.bfloat16},
        "lamb": {"exp_avg": torch.float16, "exp_avg_sq": torch.bfloat16},
        "rmsprop": {"square_avg": torch.bfloat16, "grad_avg": torch.float16, "momentum_buffer": torch.float16},
    }
    narrow, wide = (torch.float16, torch.bfloat16), (torch.float32, torch.float32)
    weight, state = start(64, dtype=torch.float16), {}
    for given in gradients(64, dtype=torch.float32):
        # The same step from the same numbers, all of them in float32.
        reference, copied = weight.float(), {key: part.float().clone() for key, part in state.items()}
        run(name, wide, reference, given, copied, group)
        run(name, narrow, weight, given, state, group)
        assert torch.equal(weight, reference.half())
        assert {key: part.dtype for key, part in state.items() if key != "step"} == expected[name]
        for key, part in state.items():
            assert torch.equal(part, copied[key].to(part.dtype))


def test_gradients_are_widened_and_turned_round_where_that_is_asked_for():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        weight = nn.Parameter(torch.zeros(2, dtype=dtype))
        weight.grad = torch.tensor([1.5, -2.0], dtype=dtype)
        wide = wide_gradient(weight)
        assert wide.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
        assert wide.tolist() == [1.5, -2.0]
        assert wide_gradient(weight, maximize=True).tolist() == [-1.5, 2.0]
        assert weight.grad.tolist() == [1.5, -2.0]

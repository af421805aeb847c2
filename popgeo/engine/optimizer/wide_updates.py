"""Updates worked out in float32 whatever the type of the weights, with moments of a type of their own."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def wide_gradient(parameter: Tensor, *, maximize: bool = False) -> Tensor:
    """A parameter's gradient in float32, or in float64 for such a parameter."""
    grad = parameter.grad
    assert grad is not None
    wide = grad if grad.dtype in (torch.float32, torch.float64) else grad.float()
    return -wide if maximize else wide


def sgd(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Any],
    group: Mapping[str, Any],
    *,
    velocity_type: torch.dtype,
    velocity_scaling: float,
) -> None:
    """One step of stochastic gradient descent, with torch's names of the settings.

    Args:
        parameter: What changes.
        gradient: In float32.
        state: Keeps `momentum_buffer`, the velocity times its scaling.
        group: `lr`, `momentum`, `dampening`, `weight_decay`, `nesterov`.
        velocity_type: Type of the velocity.
        velocity_scaling: What the velocity is kept multiplied by, so that small ones do not vanish in float16.

    Example:
        >>> weight, state = torch.ones(1, dtype=torch.float16), {}
        >>> group = dict(lr=0.5, momentum=0.9, dampening=0, weight_decay=0, nesterov=False)
        >>> for _ in range(2):
        ...     sgd(weight, torch.ones(1), state, group, velocity_type=torch.float32, velocity_scaling=2.0)
        >>> round(weight.item(), 2), state["momentum_buffer"]
        (-0.45, tensor([3.8000]))
    """
    lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
    step = gradient + parameter.to(gradient.dtype) * decay if decay else gradient
    if momentum:
        scaled = step * velocity_scaling
        if "momentum_buffer" in state:
            scaled = state["momentum_buffer"].to(gradient.dtype) * momentum + scaled * (1 - group["dampening"])
            state["momentum_buffer"].copy_(scaled)
        else:
            state["momentum_buffer"] = scaled.to(velocity_type)
        velocity = scaled / velocity_scaling
        step = step + velocity * momentum if group["nesterov"] else velocity
    parameter.copy_(parameter.to(gradient.dtype) - step * lr)


def adam(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Any],
    group: Mapping[str, Any],
    *,
    decoupled: bool,
    bias_correction: bool,
    first_type: torch.dtype,
    second_type: torch.dtype,
) -> None:
    """One step of Adam (arXiv:1412.6980), or of AdamW (arXiv:1711.05101) where the decay is decoupled.

    Args:
        parameter: What changes.
        gradient: In float32.
        state: Keeps `step`, `exp_avg`, `exp_avg_sq`.
        group: `lr`, `betas`, `eps`, `weight_decay`.
        decoupled: Whether the decay acts on the weights alone.
        bias_correction: Whether the moments are divided by what they lack at first.
        first_type: Type of the first moment.
        second_type: Type of the second moment.

    Example:
        >>> weight = torch.ones(1)
        >>> group = dict(lr=0.1, betas=(0.5, 0.75), eps=0.0, weight_decay=0.0)
        >>> adam(weight, torch.ones(1), {}, group, decoupled=True, bias_correction=False,
        ...      first_type=torch.float32, second_type=torch.float32)
        >>> weight
        tensor([0.9000])
    """
    lr, decay = group["lr"], group["weight_decay"]
    wide = parameter.to(gradient.dtype)
    if decay and decoupled:
        wide = wide * (1 - lr * decay)
    elif decay:
        gradient = gradient + wide * decay
    first, correction, denominator = _step_of_adam(
        parameter, gradient, state, group, bias_correction, first_type, second_type
    )
    parameter.copy_(wide - first / denominator * (lr / correction))


def lamb(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Any],
    group: Mapping[str, Any],
    *,
    bias_correction: bool,
    first_type: torch.dtype,
    second_type: torch.dtype,
) -> None:
    """One step of LAMB (arXiv:1904.00962): Adam's, scaled by the ratio of the norms of weights and step.

    Args:
        parameter: What changes; its norm and that of its step are over the whole tensor.
        gradient: In float32.
        state: As for `adam`.
        group: `lr`, `betas`, `eps`, `weight_decay`, and `max_weight_norm`, the most that the weights' norm counts.
        bias_correction: As for `adam`.
        first_type: As for `adam`.
        second_type: As for `adam`.

    Example:
        >>> weight = torch.tensor([3.0, 4.0])
        >>> group = dict(lr=0.1, betas=(0.0, 0.0), eps=0.0, weight_decay=0.0, max_weight_norm=None)
        >>> lamb(weight, torch.tensor([1.0, 0.0]) + 1e-9, {}, group, bias_correction=True,
        ...      first_type=torch.float32, second_type=torch.float32)
        >>> weight
        tensor([2.6464, 3.6464])
    """
    wide = parameter.to(gradient.dtype)
    first, correction, denominator = _step_of_adam(
        parameter, gradient, state, group, bias_correction, first_type, second_type
    )
    step = first / correction / denominator + wide * group["weight_decay"]
    weight_norm, step_norm = wide.norm(), step.norm()
    if group["max_weight_norm"] is not None:
        weight_norm = weight_norm.clamp(max=group["max_weight_norm"])
    trust = torch.where((weight_norm > 0) & (step_norm > 0), weight_norm / step_norm, 1.0)
    parameter.copy_(wide - step * trust * group["lr"])


def rmsprop(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Any],
    group: Mapping[str, Any],
    *,
    eps_in_root: bool,
    first_type: torch.dtype,
    second_type: torch.dtype,
) -> None:
    """One step of RMSprop, with torch's names of the settings.

    Args:
        parameter: What changes.
        gradient: In float32.
        state: Keeps `step`, `square_avg`, and `grad_avg` where centred and `momentum_buffer` where there is momentum.
        group: `lr`, `alpha`, `eps`, `weight_decay`, `momentum`, `centered`.
        eps_in_root: TensorFlow's variant: eps is added before the root, and the rate counts before the momentum.
        first_type: Type of the mean of gradients and of the velocity.
        second_type: Type of the mean of squares.

    Example:
        >>> weight = torch.ones(1)
        >>> group = dict(lr=0.1, alpha=0.75, eps=0.75, weight_decay=0, momentum=0, centered=False)
        >>> rmsprop(weight, torch.ones(1), {}, group, eps_in_root=True,
        ...         first_type=torch.float32, second_type=torch.float32)
        >>> weight
        tensor([0.9000])
    """
    lr, alpha, eps = group["lr"], group["alpha"], group["eps"]
    wide = parameter.to(gradient.dtype)
    if group["weight_decay"]:
        gradient = gradient + wide * group["weight_decay"]
    _count(state)
    spread = _kept(
        state, "square_avg", parameter, second_type, lambda old: old * alpha + gradient.square() * (1 - alpha)
    )
    if group["centered"]:
        mean = _kept(state, "grad_avg", parameter, first_type, lambda old: old * alpha + gradient * (1 - alpha))
        spread = spread - mean.square()
    step = gradient / ((spread + eps).sqrt() if eps_in_root else spread.sqrt() + eps)
    if eps_in_root:
        step = step * lr
    if group["momentum"]:
        step = _kept(state, "momentum_buffer", parameter, first_type, lambda old: old * group["momentum"] + step)
    parameter.copy_(wide - (step if eps_in_root else step * lr))


def _step_of_adam(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Any],
    group: Mapping[str, Any],
    bias_correction: bool,
    first_type: torch.dtype,
    second_type: torch.dtype,
) -> tuple[Tensor, float, Tensor]:
    """After this gradient: the first moment, what it is to be divided by, and the denominator; all in float32."""
    count = _count(state)
    first, second = (beta for beta in group["betas"])
    mean = _kept(state, "exp_avg", parameter, first_type, lambda old: old * first + gradient * (1 - first))
    square = gradient.square()
    spread = _kept(state, "exp_avg_sq", parameter, second_type, lambda old: old * second + square * (1 - second))
    corrections = [1 - beta**count if bias_correction else 1.0 for beta in (first, second)]
    return mean, corrections[0], spread.sqrt() / math.sqrt(corrections[1]) + group["eps"]


def _count(state: dict[str, Any]) -> float:
    if "step" not in state:
        state["step"] = torch.tensor(0.0)
    state["step"] += 1
    return float(state["step"].item())


def _kept(state: dict[str, Any], key: str, parameter: Tensor, dtype: torch.dtype, renewed: Any) -> Tensor:
    """A piece of the state after it is renewed, in float32; it is kept in its own type."""
    if key not in state:
        state[key] = torch.zeros_like(parameter, dtype=dtype, memory_format=torch.preserve_format)
    wide = torch.float64 if parameter.dtype is torch.float64 else torch.float32
    new = renewed(state[key].to(wide))
    state[key].copy_(new)
    return new

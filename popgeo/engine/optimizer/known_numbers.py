"""Formulas for the numbers that torch's optimizers pass to their operations, in the order of the operations.

Each function repeats the arithmetic of the loop of the same name in `torch/optim`, for one parameter. The arithmetic is
that of Python's floats, so the numbers are exactly those of torch.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, optim
from torch.optim import Optimizer

Settings = Mapping[str, Any]


def known_numbers(optimizer: Optimizer) -> list[float] | None:
    """Return the numbers of an update, for the step counts in the state. Return None for a class without a formula.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> known_numbers(optim.SGD([weight], lr=0.5, momentum=0.25))
        [0.25, -0.5]
    """
    formula = _FORMULAS.get(type(optimizer))
    if formula is None:
        return None
    found: list[Any] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step", 0.0)
            found += formula(group, step.item() if isinstance(step, Tensor) else step)
    return [number for number in found if type(number) is float]


def count_step(optimizer: Optimizer) -> None:
    """Add 1 to each step count in an optimizer's state."""
    for state in optimizer.state.values():
        if "step" in state:
            state["step"] += 1


def _weight_decay(group: Settings) -> list[Any]:
    decay = group["weight_decay"]
    if decay == 0:
        return []
    return [1 - group["lr"] * decay if group.get("decoupled_weight_decay") else decay]


def _sgd(group: Settings, step: float) -> list[Any]:
    momentum = group["momentum"]
    smoothed = [momentum, 1 - group["dampening"]] if momentum != 0 else []
    return [*_weight_decay(group), *smoothed, *([momentum] if group["nesterov"] else []), -group["lr"]]


def _adam(group: Settings, step: float) -> list[Any]:
    beta1, beta2 = group["betas"]
    step_size = group["lr"] / (1 - beta1**step)
    correction = (1 - beta2**step) ** 0.5
    return [*_weight_decay(group), 1 - beta1, beta2, 1 - beta2, correction, group["eps"], -step_size]


def _adamax(group: Settings, step: float) -> list[Any]:
    beta1, beta2 = group["betas"]
    return [*_weight_decay(group), 1 - beta1, beta2, group["eps"], -(group["lr"] / (1 - beta1**step))]


def _adagrad(group: Settings, step: float) -> list[Any]:
    return [*_weight_decay(group), group["eps"], -(group["lr"] / (1 + (step - 1) * group["lr_decay"]))]


def _adadelta(group: Settings, step: float) -> list[Any]:
    rho, eps = group["rho"], group["eps"]
    return [*_weight_decay(group), rho, 1 - rho, eps, eps, rho, 1 - rho, -group["lr"]]


def _rmsprop(group: Settings, step: float) -> list[Any]:
    alpha, momentum = group["alpha"], group["momentum"]
    centred = [1 - alpha] if group["centered"] else []
    smoothed = [momentum] if momentum > 0 else []
    return [*_weight_decay(group), alpha, 1 - alpha, *centred, group["eps"], *smoothed, -group["lr"]]


_FORMULAS: Mapping[type[Optimizer], Callable[[Settings, float], list[Any]]] = {
    optim.SGD: _sgd,
    optim.Adam: _adam,
    optim.AdamW: _adam,
    optim.Adamax: _adamax,
    optim.Adagrad: _adagrad,
    optim.Adadelta: _adadelta,
    optim.RMSprop: _rmsprop,
}

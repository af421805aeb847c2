"""Optimizers for CUDA graphs, which keep all numbers of an update on the device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from popgeo.engine.optimizer.worker import has_step_hooks, settings_of

_SERVED = "Adam, AdamW, NAdam, RAdam, Adamax, RMSprop, Rprop, Adadelta, ASGD or SGD"


class CapturableOptimizer:
    """Optimizer with learning rates on a device, where a captured update reads them.

    It sets `capturable=True` and `foreach=True` in the groups (`fused=True` for SGD) and moves step counts to the
    device. A scheduler may change the learning rates in the groups between updates. No other setting may change.

    Args:
        optimizer: Optimizer of torch over parameters on the device.
        device: Device of the parameters.
        learning_rate: Function from the number of an update, from 0, to its learning rate. Default: the optimizer's
            own rates.

    Raises:
        ValueError: The optimizer cannot be captured.
    """

    def __init__(
        self, optimizer: Optimizer, device: torch.device, learning_rate: Callable[[int], float] | None = None
    ) -> None:
        self.optimizer, self._device, self._learning_rate = optimizer, device, learning_rate
        self.num_updates = 0
        check_capturable(optimizer)
        self._rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self._written: list[float | None] = [None] * len(self._rates)
        self.prepare()

    def prepare(self) -> None:
        """Make groups and state capturable, and note the settings, which must not change after this."""
        for group in self.optimizer.param_groups:
            if "capturable" in group:
                # Without foreach, some of torch's optimizers read the value of the rate on the host.
                group["capturable"], group["foreach"] = True, not group.get("fused")
            else:
                group["fused"], group["foreach"] = True, False
        for state in self.optimizer.state.values():
            for key, part in state.items():
                if isinstance(part, Tensor) and part.device != self._device:
                    state[key] = part.to(self._device)
        self._settings, self._state = self._settings_now(), self.optimizer.state

    @property
    def is_as_prepared(self) -> bool:
        """Whether the optimizer still has the state of the last `prepare`. Loading a state replaces it.

        Raises:
            ValueError: A setting other than the learning rate has changed.
        """
        check_capturable(self.optimizer)
        if self.optimizer.state is not self._state:
            return False
        if len(self.optimizer.param_groups) != len(self._rates):
            raise ValueError("The optimizer's parameter groups changed after the step was captured; call reset().")
        for number, (before, now) in enumerate(zip(self._settings, self._settings_now(), strict=True)):
            for name, value in now.items():
                if before.get(name) != value:
                    raise ValueError(
                        f"{name} of parameter group {number} was {before.get(name)} when the step was captured and is "
                        f"now {value}; only lr may change from call to call. Keep it (OneCycleLR and CyclicLR: "
                        "cycle_momentum=False), or call reset() to capture the step again."
                    )
        return True

    def write_rates(self) -> None:
        """Copy the learning rates of the next update to the device, if they have changed."""
        for number, (group, place) in enumerate(zip(self.optimizer.param_groups, self._rates, strict=True)):
            rate = group["lr"]
            if self._learning_rate is not None:
                rate = group["lr"] = self._learning_rate(self.num_updates)
            if isinstance(rate, Tensor):
                place.copy_(rate)
            elif rate != self._written[number]:
                place.fill_(rate)
                self._written[number] = rate

    def step(self) -> None:
        """Update the parameters once, eagerly or during a capture, with the rates on the device."""
        groups = self.optimizer.param_groups
        given = [group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = rate
            self.optimizer.step()
        finally:
            for group, rate in zip(groups, given, strict=True):
                group["lr"] = rate

    def count(self) -> None:
        """Count one update."""
        self.num_updates += 1
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers warn without it

    def _settings_now(self) -> list[dict[str, Any]]:
        left_out = {"lr": None, "initial_lr": None}
        return [{**group, **left_out} for group in settings_of(self.optimizer)]


def check_capturable(optimizer: Optimizer) -> None:
    """Check that a CUDA graph can hold an optimizer's update.

    Raises:
        ValueError: The optimizer keeps numbers on the host, has hooks around its step, or is differentiable.

    Example:
        >>> check_capturable(torch.optim.Adagrad([torch.nn.Parameter(torch.ones(1))]))
        Traceback (most recent call last):
            ...
        ValueError: Adagrad keeps numbers of its update on the host, so a CUDA graph cannot hold it. Use Adam, ...
    """
    is_sgd = type(optimizer) is torch.optim.SGD
    if not is_sgd and not all("capturable" in group for group in optimizer.param_groups):
        raise ValueError(
            f"{type(optimizer).__name__} keeps numbers of its update on the host, so a CUDA graph cannot hold it. Use "
            f"{_SERVED}, or train on the processor: model.cpu()."
        )
    if has_step_hooks(optimizer):
        raise ValueError(
            f"{type(optimizer).__name__} has hooks around its step, which a CUDA graph would call only during the "
            "capture. Remove them, or train on the processor: model.cpu()."
        )
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise ValueError("The optimizer has differentiable=True, which a CUDA graph cannot hold. Leave it out.")

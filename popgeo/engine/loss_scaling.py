"""Dynamic loss scaling: the scale falls if gradients overflow, and grows while they are finite."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class LossScaling:
    """The rule of a dynamic loss scale, as in `torch.amp.GradScaler`.

    An update whose gradients contain infinity or NaN is skipped, and the scale is multiplied by `backoff_factor`. After
    `growth_interval` finite updates in a row the scale is multiplied by `growth_factor`.

    Attributes:
        initial: First scale.
        growth_factor: Factor of a growing scale; above 1.
        backoff_factor: Factor of a falling scale; between 0 and 1.
        growth_interval: Finite updates in a row before the scale grows.
        smallest: Least scale. Gradients that are not finite with it are an error.

    Raises:
        ValueError: a number is out of its range.

    Example:
        >>> LossScaling(initial=1024.0, growth_interval=100).initial
        1024.0
    """

    initial: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    smallest: float = 2.0**-20

    def __post_init__(self) -> None:
        interval = self.growth_interval
        allowed = {
            "initial": (0 < self.initial < math.inf, "positive"),
            "growth_factor": (1 < self.growth_factor < math.inf, "above 1"),
            "backoff_factor": (0 < self.backoff_factor < 1, "between 0 and 1"),
            "growth_interval": (type(interval) is int and interval >= 1, "an integer of at least 1"),
            "smallest": (0 <= self.smallest <= self.initial, "between 0 and the first scale"),
        }
        for name, (is_right, what) in allowed.items():
            if not is_right:
                raise ValueError(f"LossScaling.{name} is {getattr(self, name)!r}; it must be {what}.")


def loss_scaling_of(choice: object, owner: str) -> float | LossScaling:
    """Return the value of the option `loss_scaling`: a number or a rule; `"dynamic"` is the default rule.

    Args:
        choice: The option.
        owner: Name of the options, for the message.

    Raises:
        ValueError: the option is neither a positive number nor a rule.

    Example:
        >>> loss_scaling_of("dynamic", "Options") == LossScaling(), loss_scaling_of(8, "Options")
        (True, 8)
    """
    if choice == "dynamic":
        return LossScaling()
    is_number = isinstance(choice, int | float) and not isinstance(choice, bool)
    if isinstance(choice, LossScaling) or (is_number and 0 < choice < math.inf):  # type: ignore[operator]
        return choice  # type: ignore[return-value]
    what = "it must be positive" if is_number else "pass a positive number, 'dynamic' or a popgeo.LossScaling"
    raise ValueError(f"{owner}.loss_scaling is {choice!r}; {what}.")


class LossScale:
    """The present scale of the loss.

    Attributes:
        rule: The rule of its changes.
        tensor: Its value, which the captured step reads. float32, no dimensions
        good_updates: Finite updates in a row since the last change.
        skipped: Skipped updates.
        updates: All updates, with the skipped ones.

    Example:
        >>> scale = LossScale(LossScaling(initial=8.0, growth_interval=2))
        >>> scale.follow(overflowed=True), scale.value
        (False, 4.0)
        >>> scale.follow(overflowed=False), scale.follow(overflowed=False), scale.value
        (True, True, 8.0)
        >>> print(scale)
        loss scale 8, 1 of 3 updates skipped
    """

    def __init__(self, rule: LossScaling) -> None:
        self.rule = rule
        self.tensor = torch.tensor(float(rule.initial))
        self.good_updates = self.skipped = self.updates = 0

    @property
    def value(self) -> float:
        """The scale as a number."""
        return float(self.tensor)

    def follow(self, *, overflowed: bool) -> bool:
        """Adapt the scale to an update's gradients, and return whether to apply the update.

        Args:
            overflowed: Whether the gradients contain infinity or NaN.

        Raises:
            FloatingPointError: the scale has fallen below `LossScaling.smallest`.
        """
        self.updates += 1
        if overflowed:
            self.skipped += 1
            self.good_updates = 0
            self.tensor.mul_(self.rule.backoff_factor)
            if self.value < self.rule.smallest:
                raise FloatingPointError(
                    f"Gradients contain NaN or infinity even with a loss scale of {self.value:g}; {self.skipped:,} of "
                    f"{self.updates:,} updates were skipped. To find the operation that makes them, choose a constant "
                    "loss_scaling and floating_point_exceptions=True."
                )
            return False
        self.good_updates += 1
        if self.good_updates == self.rule.growth_interval:
            self.good_updates = 0
            grown = self.tensor * self.rule.growth_factor
            if bool(grown.isfinite()):
                self.tensor.copy_(grown)
        return True

    def state(self) -> dict[str, float | int]:
        """Return the scale and its counts for a checkpoint."""
        counts = {"good_updates": self.good_updates, "skipped": self.skipped, "updates": self.updates}
        return {"scale": self.value, **counts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state`."""
        self.tensor.fill_(state["scale"])
        self.good_updates, self.skipped, self.updates = state["good_updates"], state["skipped"], state["updates"]

    def __str__(self) -> str:
        return f"loss scale {self.value:,.6g}, {self.skipped:,} of {self.updates:,} updates skipped"

"""PopTorch's stochastic gradient descent."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from popgeo.compat.account import ACCOUNT, Treatment
from popgeo.compat.poptorch.optim.wide_optimizer import WideOptimizer, given, loss_of
from popgeo.engine.optimizer import wide_updates


class SGD(WideOptimizer, torch.optim.SGD):
    """Stochastic gradient descent with PopTorch's arguments.

    Args:
        params, lr, momentum, dampening, weight_decay, nesterov, maximize: As in `torch.optim.SGD`.
        loss_scaling: What the loss is multiplied by, and gradients divided by.
        velocity_scaling: What the velocity is kept multiplied by.
        use_combined_accum: Recorded: joined gradient and velocity would share memory.
        accum_type: Type of joined gradients: `torch.float32` (by default) or `torch.float16`.
        velocity_accum_type: Type of the velocity, likewise.
        max_grad_norm: 2-norm that all gradients together are limited to.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> SGD([weight], lr=0.1, loss_scaling=8.0).loss_scaling
        8.0
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        if lr is None:
            raise ValueError("SGD needs a learning rate: pass lr.")
        settings = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, lr, **given(**settings, nesterov=nesterov, maximize=maximize))
        for group in self.param_groups:
            group.setdefault("velocity_scaling", 1.0 if velocity_scaling is None else velocity_scaling)
        self.defaults["velocity_scaling"] = self.param_groups[0]["velocity_scaling"]
        self._set_up(
            {},
            {"lr": lr, **settings, "velocity_scaling": velocity_scaling, "nesterov": nesterov},
            loss_scaling=loss_scaling, max_grad_norm=max_grad_norm, accum_type=accum_type,
            types={"velocity_accum_type": velocity_accum_type},
        )  # fmt: skip
        self.use_combined_accum = bool(use_combined_accum)
        if use_combined_accum is not None:
            ACCOUNT.add("optim.SGD(use_combined_accum)", Treatment.RECORDED, "it saves memory and changes no result")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        if self._is_plain() and all(group["velocity_scaling"] == 1 for group in self.param_groups):
            return super().step(closure)
        loss = loss_of(closure)
        velocity = self._types["velocity_accum_type"]

        def update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
            scaling = group["velocity_scaling"]
            wide_updates.sgd(parameter, gradient, state, group, velocity_type=velocity, velocity_scaling=scaling)

        self._update_each(update)
        return loss

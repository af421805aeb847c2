"""PopTorch's RMSprop."""

from collections.abc import Callable
from typing import Any

import torch

from popgeo.compat.poptorch.optim.wide_optimizer import WideOptimizer, given, loss_of, moment_types
from popgeo.engine.optimizer import wide_updates


class RMSprop(WideOptimizer, torch.optim.RMSprop):
    """RMSprop with PopTorch's arguments.

    Args:
        params, lr, alpha, eps, weight_decay, momentum, centered, maximize: As in `torch.optim.RMSprop`.
        loss_scaling, accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type: As in `Adam`.
        use_tf_variant: TensorFlow's variant: eps is added before the root, and the rate counts before the momentum.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = RMSprop([weight], lr=0.1, alpha=0.75, eps=0.75, use_tf_variant=True)
        >>> weight.grad = torch.ones(1)
        >>> optimizer.step()
        >>> round(weight.item(), 3)
        0.9
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
    ) -> None:
        settings = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
        }
        super().__init__(params, **given(**settings, maximize=maximize))
        self._set_up(
            {"use_tf_variant": use_tf_variant}, settings,
            loss_scaling=loss_scaling, max_grad_norm=None, accum_type=accum_type,
            types=moment_types(first_order_momentum_accum_type, second_order_momentum_accum_type),
        )  # fmt: skip

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        if self._is_plain() and not self._choices["use_tf_variant"]:
            return super().step(closure)
        loss = loss_of(closure)
        self._update_each(
            wide_updates.rmsprop,
            eps_in_root=bool(self._choices["use_tf_variant"]),
            first_type=self._types["first_order_momentum_accum_type"],
            second_type=self._types["second_order_momentum_accum_type"],
        )
        return loss

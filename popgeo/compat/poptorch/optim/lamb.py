"""LAMB, which torch does not have."""

from collections.abc import Callable
from typing import Any

import torch

from popgeo.compat.poptorch.optim.wide_optimizer import WideOptimizer, given, loss_of, moment_types
from popgeo.engine.optimizer import wide_updates


class LAMB(WideOptimizer):
    """LAMB (arXiv:1904.00962) with PopTorch's arguments.

    Args:
        params: Parameters or groups of them.
        lr, betas, eps, weight_decay: As in `torch.optim.AdamW`.
        bias_correction: Whether the moments are divided by what they lack at first; they are by default.
        max_weight_norm: The most that the norm of the weights counts; None leaves it.
        loss_scaling, accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type, max_grad_norm: As
            in `Adam`.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = LAMB([weight], lr=0.1, weight_decay=0.0)
        >>> weight.grad = torch.tensor([1.0, 1.0])
        >>> optimizer.step()
        >>> weight.data
        tensor([2.6464, 3.6464])
    """

    elementwise = False  # it looks at the norm of each tensor

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_weight_norm": max_weight_norm,
        }
        usual = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": None}
        super().__init__(params, {**usual, **given(**settings)})
        self._set_up(
            {"bias_correction": bias_correction}, settings,
            loss_scaling=loss_scaling, max_grad_norm=max_grad_norm, accum_type=accum_type,
            types=moment_types(first_order_momentum_accum_type, second_order_momentum_accum_type),
        )  # fmt: skip

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        loss = loss_of(closure)
        self._update_each(
            wide_updates.lamb,
            bias_correction=self._choices["bias_correction"] is not False,
            first_type=self._types["first_order_momentum_accum_type"],
            second_type=self._types["second_order_momentum_accum_type"],
        )
        return loss

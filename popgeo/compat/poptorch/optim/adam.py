"""PopTorch's Adam and AdamW."""

from collections.abc import Callable
from typing import Any

import torch

from popgeo.compat.poptorch.optim.wide_optimizer import WideOptimizer, given, loss_of, moment_types
from popgeo.engine.optimizer import wide_updates


def refuse_amsgrad(amsgrad: bool | None) -> None:
    if amsgrad:
        raise ValueError("PopTorch optimizers do not support the amsgrad variant; pass amsgrad=False.")


class _Adam(WideOptimizer):
    """Adam and AdamW, which differ in how weights decay."""

    _decoupled = False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        corrects = self._choices.get("bias_correction") is not False
        if self._is_plain() and corrects:
            return super().step(closure)
        loss = loss_of(closure)
        self._update_each(
            wide_updates.adam,
            decoupled=self._decoupled,
            bias_correction=corrects,
            first_type=self._types["first_order_momentum_accum_type"],
            second_type=self._types["second_order_momentum_accum_type"],
        )
        return loss


class Adam(_Adam, torch.optim.Adam):
    """Adam with PopTorch's arguments.

    Args:
        params, lr, betas, eps, weight_decay, maximize: As in `torch.optim.Adam`.
        amsgrad: Must not be set.
        loss_scaling: What the loss is multiplied by, and gradients divided by.
        accum_type: Type of joined gradients: `torch.float32` (by default) or `torch.float16`.
        first_order_momentum_accum_type: Type of the first moment, likewise.
        second_order_momentum_accum_type: Type of the second moment, likewise.
        max_grad_norm: 2-norm that all gradients together are limited to.

    Raises:
        ValueError: amsgrad is asked for, or another type.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> Adam([weight], lr=0.1).variable_attrs.isConstant("eps")
        True
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        refuse_amsgrad(amsgrad)
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, **given(**settings, maximize=maximize))
        self._set_up(
            {}, settings, loss_scaling=loss_scaling, max_grad_norm=max_grad_norm, accum_type=accum_type,
            types=moment_types(first_order_momentum_accum_type, second_order_momentum_accum_type),
        )  # fmt: skip


class AdamW(_Adam, torch.optim.AdamW):
    """AdamW with PopTorch's arguments: those of `Adam`, and `bias_correction`.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = AdamW([weight], lr=0.1, betas=(0.5, 0.75), weight_decay=0.0, bias_correction=False)
        >>> weight.grad = torch.ones(1)
        >>> optimizer.step()
        >>> round(weight.item(), 3)
        0.9
    """

    _decoupled = True

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        refuse_amsgrad(amsgrad)
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, **given(**settings, maximize=maximize))
        self._set_up(
            {"bias_correction": bias_correction}, settings,
            loss_scaling=loss_scaling, max_grad_norm=max_grad_norm, accum_type=accum_type,
            types=moment_types(first_order_momentum_accum_type, second_order_momentum_accum_type),
        )  # fmt: skip

"""PopTorch's optimizers: their arguments, and update rules that torch's optimizers do not have."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from popgeo.compat.account import recorded
from popgeo.compat.poptorch.optim.poptorch_optimizer import PoptorchOptimizer

_MOMENTS = ("first_order_momentum_accum_type", "second_order_momentum_accum_type")
_KEPT_BY_ADAM = dict(zip(_MOMENTS, (("exp_avg",), ("exp_avg_sq",)), strict=True))
_KEPT_BY_RMSPROP = dict(zip(_MOMENTS, (("grad_avg", "momentum_buffer"), ("square_avg",)), strict=True))


class SGD(PoptorchOptimizer, torch.optim.SGD):
    """Stochastic gradient descent with PopTorch's arguments.

    Args:
        params, lr, momentum, dampening, weight_decay, nesterov, maximize: As in `torch.optim.SGD`.
        loss_scaling: Factor of the loss, by which gradients are divided.
        velocity_scaling: Factor of the stored velocity.
        use_combined_accum: Recorded. On an IPU, accumulated gradient and velocity would share memory.
        accum_type: Type of accumulated gradients: `torch.float32` (default) or `torch.float16`.
        velocity_accum_type: Type of the velocity: `torch.float32` (default) or `torch.float16`.
        max_grad_norm: Limit of the 2-norm of all gradients together.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> SGD([weight], lr=0.1, loss_scaling=8.0).loss_scaling
        8.0
    """

    types: Mapping[str, tuple[str, ...]] = {"velocity_accum_type": ("momentum_buffer",)}
    of_groups: Mapping[str, float | None] = {"velocity_scaling": 1.0}

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if self.variable_attrs.isConstant("lr"):
            raise ValueError("SGD needs a learning rate: pass lr.")
        if self.use_combined_accum is not None:
            recorded("optim.SGD(use_combined_accum)", "it saves memory and does not change results")

    def _update(self) -> None:
        for velocity, scaling in self._velocities():
            velocity.div_(scaling)
        super()._update()
        for velocity, scaling in self._velocities():
            velocity.mul_(scaling)

    def _velocities(self) -> Iterator[tuple[Tensor, float]]:
        """Yield each velocity that is stored with a factor, and the factor."""
        for _, _, state, group in self._each():
            if group["velocity_scaling"] != 1 and state.get("momentum_buffer") is not None:
                yield state["momentum_buffer"], group["velocity_scaling"]


class Adam(PoptorchOptimizer, torch.optim.Adam):
    """Adam with PopTorch's arguments.

    Args:
        params, lr, betas, eps, weight_decay, maximize: As in `torch.optim.Adam`.
        amsgrad: Must be False.
        loss_scaling: Factor of the loss, by which gradients are divided.
        accum_type: Type of accumulated gradients: `torch.float32` (default) or `torch.float16`.
        first_order_momentum_accum_type: Type of the first moment: `torch.float32` (default) or `torch.float16`.
        second_order_momentum_accum_type: Type of the second moment: `torch.float32` (default) or `torch.float16`.
        max_grad_norm: Limit of the 2-norm of all gradients together.

    Raises:
        ValueError: `amsgrad` is True, or a type is neither float32 nor float16.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> Adam([weight], lr=0.1).variable_attrs.isConstant("eps")
        True
    """

    types = _KEPT_BY_ADAM


class AdamW(PoptorchOptimizer, torch.optim.AdamW):
    """AdamW with the arguments of `Adam` and `bias_correction`.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = AdamW([weight], lr=0.1, betas=(0.5, 0.75), weight_decay=0.0, bias_correction=False)
        >>> weight.grad = torch.ones(1)
        >>> optimizer.step()
        >>> round(weight.item(), 3)
        0.9
    """

    types = _KEPT_BY_ADAM

    def _update(self) -> None:
        if self.bias_correction is not False:
            return super()._update()
        for parameter, gradient, state, group in self._each():
            step = _step_of_adam(gradient, state, group, corrects=False)
            parameter.copy_(parameter * (1 - group["lr"] * group["weight_decay"]) - step * group["lr"])


class RMSprop(PoptorchOptimizer, torch.optim.RMSprop):
    """RMSprop with PopTorch's arguments.

    Args:
        params, lr, alpha, eps, weight_decay, momentum, centered, maximize: As in `torch.optim.RMSprop`.
        loss_scaling, accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type: As in `Adam`.
        use_tf_variant: Whether to use TensorFlow's rule: eps inside the root, and the rate inside the momentum.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = RMSprop([weight], lr=0.1, alpha=0.75, eps=0.75, use_tf_variant=True)
        >>> weight.grad = torch.ones(1)
        >>> optimizer.step()
        >>> round(weight.item(), 3)
        0.9
    """

    types = _KEPT_BY_RMSPROP

    def _update(self) -> None:
        if not self.use_tf_variant:
            return super()._update()
        for parameter, gradient, state, group in self._each():
            alpha = group["alpha"]
            if group["weight_decay"]:
                gradient = gradient + parameter * group["weight_decay"]
            _count(state)
            spread = _mean(state, "square_avg", gradient.square(), alpha)
            if group["centered"]:
                spread = spread - _mean(state, "grad_avg", gradient, alpha).square()
            step = gradient / (spread + group["eps"]).sqrt() * group["lr"]
            if group["momentum"]:
                velocity = state.setdefault("momentum_buffer", torch.zeros_like(step))
                step = velocity.copy_(velocity * group["momentum"] + step)
            parameter.copy_(parameter - step)


class LAMB(PoptorchOptimizer, torch.optim.AdamW):
    """LAMB (arXiv:1904.00962) with PopTorch's arguments: Adam's step, scaled by the norms of weights and step.

    Args:
        params: Parameters, or groups of parameters.
        lr, betas, eps, weight_decay: As in `torch.optim.AdamW`.
        bias_correction: Whether to correct the bias of the moments. Default: True.
        max_weight_norm: Upper limit of the weights' norm in the scale. Default: no limit.
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

    elementwise = False  # it uses the norm of each tensor
    types = _KEPT_BY_ADAM
    of_groups: Mapping[str, float | None] = {"max_weight_norm": None}

    def _update(self) -> None:
        for parameter, gradient, state, group in self._each():
            step = _step_of_adam(gradient, state, group, corrects=self.bias_correction is not False)
            step = step + parameter * group["weight_decay"]
            weight_norm, step_norm = parameter.norm(), step.norm()
            if group["max_weight_norm"] is not None:
                weight_norm = weight_norm.clamp(max=group["max_weight_norm"])
            trust = torch.where((weight_norm > 0) & (step_norm > 0), weight_norm / step_norm, 1.0)
            parameter.copy_(parameter - step * trust * group["lr"])


def _step_of_adam(gradient: Tensor, state: dict[str, Any], group: dict[str, Any], *, corrects: bool) -> Tensor:
    """Update Adam's moments with a gradient, and return the step without the learning rate (arXiv:1412.6980)."""
    count, betas = _count(state), group["betas"]
    mean = _mean(state, "exp_avg", gradient, betas[0])
    spread = _mean(state, "exp_avg_sq", gradient.square(), betas[1])
    corrections = [1 - beta**count if corrects else 1.0 for beta in betas]
    return mean / corrections[0] / (spread.sqrt() / math.sqrt(corrections[1]) + group["eps"])


def _count(state: dict[str, Any]) -> float:
    """Add 1 to the step count of a state, and return it."""
    state["step"] = state.get("step", torch.tensor(0.0)).add_(1)
    return float(state["step"].item())


def _mean(state: dict[str, Any], key: str, new: Tensor, weight: float) -> Tensor:
    """Update a running mean in a state, with a given weight of the old mean, and return the mean."""
    mean = state.setdefault(key, torch.zeros_like(new))
    return mean.copy_(mean * weight + new * (1 - weight))

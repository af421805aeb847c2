"""Division, clipping and checks of accumulated gradients before the optimizer uses them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class GradientScaling:
    """Rule that divides gradients, then clips their joint norm.

    Attributes:
        divisor: Divisor of each gradient.
        max_grad_norm: Limit of the 2-norm over all gradients. None: no limit.
        looks_for_overflow: Whether to look for infinity and NaN first, as a captured step does.

    Example:
        >>> import torch
        >>> weight = nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([6.0, 8.0])
        >>> GradientScaling(divisor=2.0).apply([weight])
        >>> weight.grad
        tensor([3., 4.])
    """

    divisor: float = 1.0
    max_grad_norm: float | None = None
    looks_for_overflow: bool = False

    @property
    def changes_nothing(self) -> bool:
        """Whether the rule leaves gradients unchanged."""
        return self.divisor == 1 and self.max_grad_norm is None and not self.looks_for_overflow

    def apply(self, parameters: Sequence[Tensor], *, at_once: bool = False) -> None:
        """Scale the gradients of parameters in place.

        Args:
            parameters: Parameters. Those without a gradient are skipped.
            at_once: Whether to scale all gradients with a few operations, which suits a GPU. Default: one gradient
                after the other, so that a capture records each operation.
        """
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.looks_for_overflow:
            overflow_of(gradients)
        if self.divisor != 1 and at_once:
            torch._foreach_div_(gradients, self.divisor)
        elif self.divisor != 1:
            for gradient in gradients:
                gradient.div_(self.divisor)
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.max_grad_norm, foreach=None if at_once else False)


def set_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Set a parameter's gradient, which may have a wider type than the parameter."""
    if gradient.dtype != parameter.dtype:
        parameter.grad_dtype = gradient.dtype
    parameter.grad = gradient


def overflow_of(gradients: Sequence[Tensor]) -> Tensor:
    """Return a scalar tensor: 1 if a gradient holds infinity or NaN, otherwise 0.

    Example:
        >>> import torch
        >>> overflow_of([torch.ones(2), torch.tensor([1.0, torch.nan])]), overflow_of([torch.ones(2)])
        (tensor(1.), tensor(0.))
    """
    largest = [torch.linalg.vector_norm(gradient, torch.inf) for gradient in gradients]
    return 1.0 - torch.stack([norm.float() for norm in largest]).isfinite().all().float()

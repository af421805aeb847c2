"""What becomes of joined gradients before the optimizer takes them: they are divided, and clipped."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class GradientScaling:
    """Divides gradients, then scales all of them down together.

    Attributes:
        divisor: What each is divided by.
        max_grad_norm: What their 2-norm over all parameters is limited to; None leaves them.

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

    @property
    def changes_nothing(self) -> bool:
        """Whether gradients stay as they are."""
        return self.divisor == 1 and self.max_grad_norm is None

    def apply(self, parameters: Sequence[Tensor]) -> None:
        """Scales the gradients of these parameters in place, one after the other, so that a capture sees each."""
        if self.divisor != 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self.divisor)
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.max_grad_norm, foreach=False)


def set_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Gives a parameter a gradient, which may be of a wider type where this torch (2.9) allows it."""
    if gradient.dtype != parameter.dtype:
        parameter.grad_dtype = gradient.dtype
    parameter.grad = gradient


def joined_gradient_type(optimizer: Optimizer, weights: torch.dtype) -> torch.dtype:
    """The type in which gradients are joined and scaled: that of the weights, or float32 if the optimizer says so.

    Example:
        >>> joined_gradient_type(torch.optim.SGD([nn.Parameter(torch.ones(1))]), torch.float16)
        torch.float16
    """
    wanted = getattr(optimizer, "accum_type", weights)
    narrow = weights in (torch.float16, torch.bfloat16)
    return torch.float32 if narrow and wanted is torch.float32 and hasattr(Tensor, "grad_dtype") else weights

"""What becomes of joined gradients before the optimizer takes them: they are divided, and clipped."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class GradientScaling:
    """Divides gradients, then scales all of them down together.

    Attributes:
        divisor: What each is divided by.
        max_grad_norm: What their 2-norm over all parameters is limited to; None leaves them.
        looks_for_overflow: Whether they are looked at first, for infinity and NaN.

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
        """Whether gradients stay as they are."""
        return self.divisor == 1 and self.max_grad_norm is None and not self.looks_for_overflow

    def apply(self, parameters: Sequence[Tensor], *, at_once: bool = False) -> None:
        """Scales the gradients of these parameters in place.

        Args:
            parameters: Those without a gradient are left out.
            at_once: Whether by a few operations for all, which suits a GPU; else one after the other, so that a capture
                sees each.
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
    """Gives a parameter a gradient, which may be of a wider type."""
    if gradient.dtype != parameter.dtype:
        parameter.grad_dtype = gradient.dtype
    parameter.grad = gradient


def overflow_of(gradients: Sequence[Tensor]) -> Tensor:
    """1 where any of these holds infinity or NaN, 0 elsewhere, without dimensions.

    Example:
        >>> import torch
        >>> overflow_of([torch.ones(2), torch.tensor([1.0, torch.nan])]), overflow_of([torch.ones(2)])
        (tensor(1.), tensor(0.))
    """
    largest = [torch.linalg.vector_norm(gradient, torch.inf) for gradient in gradients]
    return 1.0 - torch.stack([norm.float() for norm in largest]).isfinite().all().float()

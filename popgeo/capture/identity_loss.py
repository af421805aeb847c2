"""Marks which tensor the backward pass starts from."""

import torch
from torch import Tensor


@torch.library.custom_op("popgeo::identity_loss", mutates_args=())
def _mark(x: Tensor) -> Tensor:
    return x.clone()


@_mark.register_fake
def _mark_fake(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _mark_backward(context: object, grad: Tensor) -> Tensor:
    return grad


_mark.register_autograd(_mark_backward)


def identity_loss(x: Tensor, reduction: str = "mean") -> Tensor:
    """Marks a tensor as the loss of a training model, after reducing it.

    A model with a single scalar result that needs a gradient does not need it. Of several marked tensors the one counts
    that all others take part in; without a reduction the backward pass starts from the sum of its elements.

    Args:
        x: Losses. [any shape]
        reduction: `mean`, `sum`, or `none` to keep the shape.

    Returns:
        The loss. []; with `none` the shape of `x`

    Raises:
        ValueError: another reduction.

    Example:
        >>> identity_loss(torch.tensor([1.0, 3.0]), reduction="sum")
        tensor(4.)
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(
            f"Unsupported reduction type! identity_loss got {reduction!r}; it must be 'mean', 'sum' or 'none'."
        )
    return _mark(x if reduction == "none" else getattr(x, reduction)())

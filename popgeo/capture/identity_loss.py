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

    A model with a single scalar result that needs a gradient does not need it.

    Args:
        x: Losses. [any shape]
        reduction: `mean`, `sum`, or `none` for a tensor that is a scalar already.

    Returns:
        The loss. []

    Raises:
        ValueError: another reduction, or `none` for more than one element.

    Example:
        >>> identity_loss(torch.tensor([1.0, 3.0]), reduction="sum")
        tensor(4.)
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"identity_loss got reduction {reduction!r}; it must be 'mean', 'sum' or 'none'.")
    if reduction == "none":
        if x.numel() != 1:
            raise ValueError(
                f"identity_loss got shape {tuple(x.shape)} with reduction 'none'; reduce it by 'mean' or 'sum'."
            )
        return _mark(x.reshape(()))
    return _mark(x.mean() if reduction == "mean" else x.sum())

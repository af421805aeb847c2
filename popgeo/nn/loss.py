"""Losses of the real rows only: what stands in padding, even NaN, changes neither the value nor a gradient."""

import torch
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor | None, weight: Tensor | None = None) -> Tensor:
    """Average the entries that the mask keeps, 0 when it keeps none.

    Args:
        values: What to average. [rows, ...]
        mask: True where the entry counts: one for each row, or of the values' shape. None keeps all.
        weight: What to divide by instead of the number of entries kept. Batches of different fill average rightly over
            replicas and accumulation steps when all divide by the same number.

    Example:
        >>> masked_mean(torch.tensor([1.0, 3.0, torch.nan]), torch.tensor([True, True, False]))
        tensor(2.)
    """
    if mask is None:
        mask = torch.ones_like(values, dtype=torch.bool)
    mask = mask.view(*mask.shape, *[1] * (values.dim() - mask.dim())).expand_as(values)
    total = torch.where(mask, values, 0.0).sum()
    count = mask.sum().clamp(min=1).to(values.dtype) if weight is None else weight
    return total / count


def _differences(input: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """`input - target`, with neither value nor gradient outside the mask."""
    if input.shape != target.shape:
        raise ValueError(
            f"input has shape {tuple(input.shape)}, target {tuple(target.shape)}. "
            "They would broadcast to every pair; reshape one, for instance with flatten() or view_as()."
        )
    difference = input - target
    if mask is None:
        return difference
    return torch.where(mask.view(*mask.shape, *[1] * (input.dim() - mask.dim())), difference, 0.0)


def mse_loss(input: Tensor, target: Tensor, mask: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
    """Mean squared error of the real rows.

    Args:
        input: Predictions. [rows, ...]
        target: What they should be, of the same shape.
        mask: True where the row is real. [rows] or of the input's shape
        weight: See `masked_mean`.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> mse_loss(torch.tensor([1.0, 4.0, 9.0]), torch.tensor([0.0, 2.0, 5.0]), torch.tensor([True, True, False]))
        tensor(2.5000)
    """
    return masked_mean(_differences(input, target, mask).square(), mask, weight)


def l1_loss(input: Tensor, target: Tensor, mask: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
    """Mean absolute error of the real rows; arguments as in `mse_loss`.

    Example:
        >>> l1_loss(torch.tensor([1.0, 4.0, 9.0]), torch.tensor([0.0, 2.0, 5.0]), torch.tensor([True, True, False]))
        tensor(1.5000)
    """
    return masked_mean(_differences(input, target, mask).abs(), mask, weight)

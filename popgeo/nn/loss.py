"""Losses of the real rows only: what stands in padding, even NaN, changes neither the value nor a gradient."""

import torch
from torch import Tensor
from torch.nn import functional as F


def masked_mean(values: Tensor, mask: Tensor | None = None, weight: Tensor | float | None = None) -> Tensor:
    """Average the entries that the mask keeps; 0 when it keeps none.

    Args:
        values: What to average. [rows, ...]
        mask: True where the entry counts: one for each row, or of the values' shape. None keeps all.
        weight: What to divide by instead of the number of entries kept. Batches and replicas of different fill average
            rightly when all divide by the same number, such as the mean count of real entries over them.

    Returns:
        The sum of the entries kept, divided by their number or by `weight`. []

    Example:
        >>> masked_mean(torch.tensor([1.0, 3.0, torch.nan]), torch.tensor([True, True, False]))
        tensor(2.)
    """
    mask, wide = _entries(values, mask), torch.promote_types(values.dtype, torch.float32)  # half counts to 65,504 only
    total = torch.where(mask, values, 0.0).to(wide).sum()
    return (total / (mask.sum().clamp(min=1).to(wide) if weight is None else weight)).to(values.dtype)


def known_labels(target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Where a label is known and its row is real: the mask that any loss here takes.

    Args:
        target: Labels, NaN where nobody measured. [rows, ...]
        mask: True where the row is real. [rows] or of the target's shape

    Example:
        >>> known_labels(torch.tensor([[1.0, torch.nan], [2.0, 3.0]]), torch.tensor([True, False]))
        tensor([[ True, False],
                [False, False]])
    """
    return _entries(target, mask) & ~target.isnan()


def mse_loss(input: Tensor, target: Tensor, mask: Tensor | None = None, weight: Tensor | float | None = None) -> Tensor:
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
    return masked_mean(_difference(input, target, mask).square(), mask, weight)


def l1_loss(input: Tensor, target: Tensor, mask: Tensor | None = None, weight: Tensor | float | None = None) -> Tensor:
    """Mean absolute error of the real rows; arguments as in `mse_loss`.

    Example:
        >>> l1_loss(torch.tensor([1.0, 4.0, 9.0]), torch.tensor([0.0, 2.0, 5.0]), torch.tensor([True, True, False]))
        tensor(1.5000)
    """
    return masked_mean(_difference(input, target, mask).abs(), mask, weight)


def huber_loss(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    weight: Tensor | float | None = None,
    delta: float = 1.0,
) -> Tensor:
    """Squared error below `delta` (halved), absolute error above, of the real rows; arguments as in `mse_loss`.

    Example:
        >>> huber_loss(torch.tensor([1.0, 4.0, 9.0]), torch.tensor([0.0, 2.0, 5.0]), torch.tensor([True, True, False]))
        tensor(1.)
    """
    difference = _difference(input, target, mask)
    values = F.huber_loss(difference, torch.zeros_like(difference), reduction="none", delta=delta)
    return masked_mean(values, mask, weight)


def cross_entropy(
    input: Tensor, target: Tensor, mask: Tensor | None = None, weight: Tensor | float | None = None
) -> Tensor:
    """Cross-entropy of the real rows' classes.

    Args:
        input: Logits. [rows, num_classes]
        target: Classes; those of padding rows may be anything. [rows]
        mask: True where the row is real. [rows]
        weight: See `masked_mean`.

    Raises:
        ValueError: there is not one class for each row of logits.

    Example:
        >>> logits, target = torch.tensor([[0.0, 0.0], [9.0, -9.0]]), torch.tensor([1, -1])
        >>> cross_entropy(logits, target, torch.tensor([True, False]))
        tensor(0.6931)
    """
    check_classes(input, target, "cross-entropy")
    if mask is not None:
        # Class 0 stands in where there is none: an index outside the classes could not be looked up.
        input, target = torch.where(mask.unsqueeze(1), input, 0.0), torch.where(mask, target, 0)
    values = -input.log_softmax(1).gather(1, target.unsqueeze(1)).squeeze(1)
    return masked_mean(values, mask, weight)


def binary_cross_entropy(
    input: Tensor, target: Tensor, mask: Tensor | None = None, weight: Tensor | float | None = None
) -> Tensor:
    """Binary cross-entropy over one or many tasks; a NaN label is one that nobody measured and counts for nothing.

    Args:
        input: Logits. [rows] or [rows, num_tasks]
        target: 0, 1 or NaN, of the same shape.
        mask: True where the row is real. [rows] or of the input's shape
        weight: See `masked_mean`.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> binary_cross_entropy(torch.tensor([0.0, 5.0]), torch.tensor([1.0, torch.nan]))
        tensor(0.6931)
    """
    _check_shapes(input, target)
    known = known_labels(target, mask)
    values = F.binary_cross_entropy_with_logits(
        torch.where(known, input, 0.0), torch.where(known, target.to(input.dtype), 0.0), reduction="none"
    )
    return masked_mean(values, known, weight)


def check_classes(input: Tensor, target: Tensor, name: str) -> None:
    """Refuses anything but a row of logits for each class.

    Raises:
        ValueError: the shapes are others; the message names what needs these.
    """
    if input.dim() != 2 or target.shape != input.shape[:1]:
        raise ValueError(
            f"input has shape {tuple(input.shape)}, target {tuple(target.shape)}; "
            f"{name} needs logits [rows, num_classes] and classes [rows]."
        )


def _entries(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mask at each entry of the values."""
    if mask is None:
        return torch.ones_like(values, dtype=torch.bool)
    if mask.shape != values.shape[: mask.dim()]:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}, the values {tuple(values.shape)}; "
            "it needs one entry for each row, or for each value."
        )
    return mask.view(*mask.shape, *[1] * (values.dim() - mask.dim())).expand_as(values)


def _check_shapes(input: Tensor, target: Tensor) -> None:
    if input.shape != target.shape:
        raise ValueError(
            f"input has shape {tuple(input.shape)}, target {tuple(target.shape)}. "
            "They would broadcast to every pair; reshape one, for instance with flatten() or view_as()."
        )


def _difference(input: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """`input - target`, with neither value nor gradient outside the mask."""
    _check_shapes(input, target)
    return torch.where(_entries(input, mask), input - target, 0.0)

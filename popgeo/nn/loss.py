"""Losses over real rows only. Values in padding, even NaN, change neither the loss nor a gradient.

As in torch, `weight` is a factor for each entry, or for each class. A weighted mean has the same divisor as in torch,
unless `divide_by` replaces it.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from popgeo.nn.require_classes import check_classes, require_classes
from popgeo.ops.half_precision import in_float32
from popgeo.ops.refusals import check_shapes, require


@in_float32
def masked_mean(values: Tensor, mask: Tensor | None = None, divide_by: Tensor | float | None = None) -> Tensor:
    """Average the entries that the mask keeps; return 0 if it keeps none.

    Args:
        values: Values to average. [rows, ...]
        mask: True where the entry counts. Default: all count. [rows] or of the values' shape
        divide_by: Divisor instead of the number of kept entries: a number, or a tensor of one entry. The average over
            batches or replicas with different numbers of real entries is correct if all divide by the same number, such
            as their mean number of real entries.

    Returns:
        The sum of the kept entries, divided by their number or by `divide_by`. []

    Raises:
        ValueError: the mask is not boolean or has a different shape, or `divide_by` has several elements.

    Example:
        >>> masked_mean(torch.tensor([1.0, 3.0, torch.nan]), torch.tensor([True, True, False]))
        tensor(2.)
    """
    return _mean(values, None, mask, divide_by)


def known_labels(target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mask of known labels in real rows, which every loss here accepts.

    Args:
        target: Labels, NaN if not measured. [rows, ...]
        mask: True where the row is real. [rows] or of the target's shape

    Example:
        >>> known_labels(torch.tensor([[1.0, torch.nan], [2.0, 3.0]]), torch.tensor([True, False]))
        tensor([[ True, False],
                [False, False]])
    """
    return _entries(target, mask) & ~target.isnan()


@in_float32
def mse_loss(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    divide_by: Tensor | float | None = None,
) -> Tensor:
    """Compute the mean squared error of the real rows.

    Args:
        input: Predictions. [rows, ...]
        target: True values, of the same shape.
        mask: True where the row is real. [rows] or of the input's shape
        weight: Factor for each row or entry. As in torch, the mean divides by the sum of the factors that count.
        divide_by: Divisor instead of this sum; see `masked_mean`.

    Raises:
        ValueError: the shapes differ, or `mask`, `weight` or `divide_by` has the wrong shape or type.

    Example:
        >>> mse_loss(torch.tensor([1.0, 4.0, 9.0]), torch.tensor([0.0, 2.0, 5.0]), torch.tensor([True, True, False]))
        tensor(2.5000)
    """
    return _mean(*_weighted(_difference(input, target, mask).square(), weight), mask, divide_by)


@in_float32
def l1_loss(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    divide_by: Tensor | float | None = None,
) -> Tensor:
    """Compute the mean absolute error of the real rows; `mse_loss` explains the arguments.

    Example:
        >>> l1_loss(torch.tensor([1.0, 4.0, 9.0]), torch.tensor([0.0, 2.0, 5.0]), torch.tensor([True, True, False]))
        tensor(1.5000)
    """
    return _mean(*_weighted(_difference(input, target, mask).abs(), weight), mask, divide_by)


@in_float32
def huber_loss(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    delta: float = 1.0,
    divide_by: Tensor | float | None = None,
) -> Tensor:
    """Compute the mean of the real rows' Huber loss: half the squared error up to `delta`, linear above.

    `mse_loss` explains the arguments; but with `weight` the mean divides by the number of entries, as in torch.

    Example:
        >>> huber_loss(torch.tensor([1.0, 4.0, 9.0]), torch.tensor([0.0, 2.0, 5.0]), torch.tensor([True, True, False]))
        tensor(1.)
    """
    difference = _difference(input, target, mask)
    values = F.huber_loss(difference, torch.zeros_like(difference), reduction="none", delta=delta)
    return _mean(_weighted(values, weight)[0], None, mask, divide_by)


@in_float32
def cross_entropy(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    divide_by: Tensor | float | None = None,
) -> Tensor:
    """Compute the mean cross-entropy of the real rows.

    Args:
        input: Logits. [rows, num_classes]
        target: Classes; padding rows may have any number. [rows]
        mask: True where the row is real. [rows]
        weight: Factor for each class. As in torch, the mean divides by the sum of the rows' factors. [num_classes]
        label_smoothing: Share of each label that is spread evenly over all classes (arXiv:1512.00567, sec. 7).
        divide_by: Divisor instead of the number of rows, or of this sum; see `masked_mean`.

    Raises:
        ValueError: the number of classes is not the number of rows of logits, a class of a real row does not exist, or
            `mask`, `weight` or `divide_by` has the wrong shape or type.

    Example:
        >>> logits, target = torch.tensor([[0.0, 0.0], [9.0, -9.0]]), torch.tensor([1, -1])
        >>> cross_entropy(logits, target, torch.tensor([True, False]))
        tensor(0.6931)
    """
    check_classes(input, target, "cross-entropy")
    num_classes = input.size(1)
    if mask is not None:
        # Padding gets class 0, because torch cannot look up an index outside the classes.
        mask = _entries(target, mask)
        input, target = torch.where(mask.unsqueeze(1), input, 0.0), torch.where(mask, target, 0)
    logits, target = require_classes(target, num_classes, input)
    target, log_p = target.unsqueeze(1), logits.log_softmax(1)
    share = None
    if weight is not None:
        weight = _factors(weight, (num_classes,), log_p)
        share, log_p = weight.index_select(0, target.flatten()), log_p * weight
    values = -log_p.gather(1, target).squeeze(1)
    if label_smoothing:
        values = torch.lerp(values, -log_p.mean(1), label_smoothing)
    return _mean(values, share, mask, divide_by)


@in_float32
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    divide_by: Tensor | float | None = None,
) -> Tensor:
    """Compute the mean binary cross-entropy over one or many tasks; NaN labels, which were not measured, do not count.

    Args:
        input: Logits. [rows] or [rows, num_tasks]
        target: Labels from 0 to 1, or NaN, of the same shape.
        mask: True where the row is real. [rows] or of the input's shape
        weight: Factor for each row or entry. As in torch, the mean divides by the number of entries.
        pos_weight: Factor for the label 1 of each task. [] or [num_tasks]
        label_smoothing: Share of each label that is replaced by one half.
        divide_by: Divisor instead of the number of entries; see `masked_mean`.

    Raises:
        ValueError: the shapes differ, a known label of a real row is not within 0 and 1, or `mask`, `weight` or
            `divide_by` has the wrong shape or type.

    Example:
        >>> binary_cross_entropy(torch.tensor([0.0, 5.0]), torch.tensor([1.0, torch.nan]))
        tensor(0.6931)
    """
    _check_shapes(input, target)
    known = known_labels(target, mask)
    label = torch.where(known, target.to(input.dtype), 0.0)
    outside = (label < 0) | (label > 1)
    logits = require(
        ~outside.any(),
        torch.where(known, input, 0.0),
        lambda: f"A label is {float(label[outside][0])}; labels are 0 to 1, and NaN if not measured.",
    )
    label = label * (1 - label_smoothing) + label_smoothing / 2 if label_smoothing else label
    values = F.binary_cross_entropy_with_logits(logits, label, pos_weight=pos_weight, reduction="none")
    return _mean(_weighted(values, weight)[0], None, known, divide_by)


def _mean(values: Tensor, share: Tensor | None, mask: Tensor | None, divide_by: Tensor | float | None) -> Tensor:
    """Return the sum of kept values divided by `divide_by`, by the sum of shares, or by the number of kept values."""
    mask = _entries(values, mask)
    total = torch.where(mask, values, 0.0).sum()
    if isinstance(divide_by, Tensor) and divide_by.numel() != 1:
        raise ValueError(
            f"divide_by has shape {tuple(divide_by.shape)}; it is one number. For a factor for each entry or class "
            "pass weight=."
        )
    if divide_by is not None:
        return total / (divide_by.reshape(()) if isinstance(divide_by, Tensor) else divide_by)
    if share is None:
        return total / mask.sum().clamp(min=1)
    shares = torch.where(mask, share, 0.0).sum()
    return total / torch.where(shares == 0, 1.0, shares)


def _weighted(values: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the values times their weights, and the weight of each value."""
    if weight is None:
        return values, None
    share = _at_entries(_factors(weight, tuple(values.shape), values), values)
    return values * share, share


def _factors(weight: Tensor, shape: tuple[int, ...], values: Tensor) -> Tensor:
    """Return `weight` in the values' type, after a check that `shape` begins with its shape."""
    if not isinstance(weight, Tensor) or tuple(weight.shape) != shape[: weight.dim()] or weight.dim() == 0:
        given = f"has shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else f"is {weight!r}"
        raise ValueError(
            f"weight {given}; as in torch it is a tensor of factors, {shape} here. To scale a loss multiply it; to "
            "divide by a different number pass divide_by=."
        )
    return weight.to(values.dtype)


def _at_entries(rows: Tensor, values: Tensor) -> Tensor:
    """Expand numbers per row or per entry to the shape of the values."""
    return rows.view(*rows.shape, *[1] * (values.dim() - rows.dim())).expand_as(values)


def _entries(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mask at each entry of the values."""
    if mask is None:
        return torch.ones_like(values, dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask is {kind}; it is a boolean tensor, True where a row counts: mask.bool().")
    check_shapes("It needs one entry for each row, or for each value.", mask=(mask, values.shape[: mask.dim()]))
    return _at_entries(mask, values)


def _check_shapes(input: Tensor, target: Tensor) -> None:
    remedy = "Input and target would broadcast to every pair; reshape one, for instance with flatten() or view_as()."
    check_shapes(remedy, target=(target, input.shape))


def _difference(input: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """Return `input - target`, with 0 and no gradient outside the mask. Integers become int64 against overflow."""
    _check_shapes(input, target)
    dtype = torch.promote_types(torch.promote_types(input.dtype, target.dtype), torch.int64)
    return torch.where(_entries(input, mask), input.to(dtype) - target.to(dtype), 0.0)

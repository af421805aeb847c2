"""Metrics over known labels in real rows. A metric is not additive over batches: concatenate all batches' rows first.

A prediction of NaN in these rows makes every metric NaN, so that a model that diverged never looks good.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from popgeo.nn.loss import known_labels, l1_loss, masked_mean, mse_loss
from popgeo.nn.require_classes import check_classes, require_classes
from popgeo.ops.half_precision import in_float32
from popgeo.ops.refusals import check_shapes, require


@in_float32
def accuracy(input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the share of real rows with the largest logit at their class.

    Args:
        input: Logits. [rows, num_classes]
        target: Classes. [rows]
        mask: True where the row is real. [rows]

    Returns:
        A number between 0 and 1; 0 without real rows. []

    Raises:
        ValueError: the number of classes is not the number of rows of logits, or a class of a real row does not exist.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [0.0, 9.0]])
        >>> accuracy(logits, torch.tensor([0, 0, 1]), torch.tensor([True, True, False]))
        tensor(0.5000)
    """
    check_classes(input, target, "accuracy")
    real = known_labels(target, mask)
    input, target = require_classes(torch.where(real, target, 0), input.size(1), input)
    right = (input.argmax(1) == target).to(input.dtype)
    return masked_mean(torch.where(input.isnan().any(1), torch.nan, right), real)


@in_float32
def mean_absolute_error(input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the mean absolute error of predictions; NaN without known labels.

    Args:
        input: Predictions. [rows]
        target: True values, NaN if not measured. [rows]
        mask: True where the row is real. [rows]

    Example:
        >>> mean_absolute_error(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([1.0, 4.0, torch.nan]))
        tensor(1.)
    """
    known = _known(input, target, mask)
    return torch.where(known.any(), l1_loss(input, target, known), torch.nan)


@in_float32
def root_mean_squared_error(input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the root of the mean squared error; `mean_absolute_error` explains the arguments.

    Example:
        >>> root_mean_squared_error(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([-1.0, 4.0, torch.nan]))
        tensor(2.)
    """
    known = _known(input, target, mask)
    return torch.where(known.any(), mse_loss(input, target, known).sqrt(), torch.nan)


@in_float32
def pearson_r(input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute Pearson's correlation, from -1 to 1; NaN if predictions or labels do not vary.

    Args:
        input: Predictions. [rows]
        target: True values, NaN if not measured. [rows]
        mask: True where the row is real. [rows]

    Example:
        >>> pearson_r(torch.tensor([1.0, 2.0, 3.0, 0.0]), torch.tensor([-2.0, -4.0, -6.0, torch.nan]))
        tensor(-1.0000)
    """
    known = _known(input, target, mask)
    moved = [_from_first(values, known) for values in (input, target)]
    x, y = (torch.where(known, values - masked_mean(values, known), 0.0) for values in moved)
    return (x * y).sum() / (x.square().sum().sqrt() * y.square().sum().sqrt())


@in_float32
def r2_score(input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute R^2, one minus the squared error over the target's variance.

    A perfect prediction has 1, the mean has 0, and a target without variance NaN.

    Args:
        input: Predictions. [rows]
        target: True values, NaN if not measured. [rows]
        mask: True where the row is real. [rows]

    Example:
        >>> r2_score(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([1.0, 3.0, 0.0]), torch.tensor([True, True, False]))
        tensor(0.5000)
    """
    known = _known(input, target, mask)
    moved = _from_first(target, known)
    variance = masked_mean((moved - masked_mean(moved, known)).square(), known)
    return 1 - mse_loss(input, target, known) / torch.where(variance == 0, torch.nan, variance)


@in_float32
def roc_auc(input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the area under the ROC curve: the chance that a row of class 1 scores above a row of class 0.

    Ties count half.

    Args:
        input: Scores. [rows]
        target: 0, 1, or NaN if not measured. [rows]
        mask: True where the row is real. [rows]

    Returns:
        A number between 0 and 1; NaN if a class is missing. []

    Raises:
        ValueError: the shapes differ, or a known label of a real row is neither 0 nor 1.

    Example:
        >>> scores, target = torch.tensor([0.1, 0.4, 0.35, 0.8, 7.0]), torch.tensor([0.0, 0, 1, 1, torch.nan])
        >>> roc_auc(scores, target)
        tensor(0.7500)
    """
    known, input = _scores(input, target, mask)
    # Unknown rows sort last and do not count, not even among infinite scores. U is the Mann-Whitney statistic of ranks.
    scores = torch.where(known, input, torch.inf)
    ordered = scores.sort().values
    below = torch.searchsorted(ordered, scores)
    not_above = torch.searchsorted(ordered, scores, right=True).minimum(known.sum())
    rank = (below + not_above + 1).to(torch.float64) / 2
    positive = known & (target == 1)
    num_positive = positive.sum().to(torch.float64)
    num_negative = (known & (target == 0)).sum().to(torch.float64)
    u = torch.where(positive, rank, 0.0).sum() - num_positive * (num_positive + 1) / 2
    return torch.where((known & input.isnan()).any(), torch.nan, u / (num_positive * num_negative)).to(input.dtype)


@in_float32
def average_precision(input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the average precision: the mean precision at the scores of all rows of class 1.

    The precision at a score is the share of class 1 among the rows with this score or a higher one. The result is the
    area below the step function of precision over recall.

    Args:
        input: Scores. [rows]
        target: 0, 1, or NaN if not measured. [rows]
        mask: True where the row is real. [rows]

    Returns:
        A number between 0 and 1; NaN without a row of class 1. []

    Example:
        >>> average_precision(torch.tensor([0.1, 0.4, 0.35, 0.8, 7.0]), torch.tensor([0.0, 0, 1, 1, torch.nan]))
        tensor(0.8333)
    """
    known, input = _scores(input, target, mask)
    positive = known & (target == 1)

    def as_high(counted: Tensor) -> Tensor:
        ordered = torch.where(counted, input, -torch.inf).sort().values  # rows that do not count sort first
        return (input.numel() - torch.searchsorted(ordered, input.contiguous())).minimum(counted.sum())

    precision = as_high(positive).to(torch.float64) / as_high(known).clamp(min=1)
    mean = torch.where(positive, precision, 0.0).sum() / positive.sum()
    return torch.where((known & input.isnan()).any(), torch.nan, mean).to(input.dtype)


def mean_over_tasks(
    metric: Callable[[Tensor, Tensor, Tensor | None], Tensor], input: Tensor, target: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Compute a metric's mean over tasks, except tasks with a NaN, such as tasks with a missing class.

    A prediction of NaN for a known label makes the mean NaN.

    Args:
        metric: A metric of one task, such as `roc_auc`.
        input: Predictions or scores. [rows, num_tasks]
        target: Labels, NaN if not measured. [rows, num_tasks]
        mask: True where the row is real. [rows]

    Raises:
        ValueError: there are no columns, or the shapes differ.

    Example:
        >>> scores, target = torch.tensor([[0.1, 1.0], [0.9, 2.0]]), torch.tensor([[0.0, torch.nan], [1.0, torch.nan]])
        >>> mean_over_tasks(roc_auc, scores, target)
        tensor(1.)
    """
    remedy = "Both need the shape [rows, num_tasks]. Call the metric itself for a single task."
    check_shapes(remedy, input=(input, (None, None)), target=(target, input.shape))
    values = [metric(input[:, task], target[:, task], mask) for task in range(input.size(1))]
    unknown = (known_labels(target, mask) & input.isnan()).any()
    return torch.where(unknown, torch.nan, torch.stack(values).nanmean())


def _known(input: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mask of known labels in real rows. [rows]."""
    remedy = "Both need the shape [rows]. Call it for each task, with input[:, task], or mean_over_tasks for all."
    check_shapes(remedy, input=(input, (None,)), target=(target, input.shape))
    return known_labels(target, mask)


def _from_first(values: Tensor, known: Tensor) -> Tensor:
    """Subtract the first known value, so that equal values become exactly 0. [rows]."""
    values = values.to(torch.promote_types(values.dtype, torch.int64))  # smaller integers overflow
    return values - values.gather(0, known.long().argmax(0, keepdim=True)) if len(values) else values


def _scores(input: Tensor, target: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the mask of known labels in real rows, and the scores as floating point numbers."""
    known = _known(input, target, mask)
    odd = known & (target != 0) & (target != 1)
    input = input.to(torch.promote_types(input.dtype, torch.float32))
    reason = "labels are 0 and 1, and NaN if not measured. Make others NaN, or call this for each class."
    return known, require(~odd.any(), input, lambda: f"A label is {target[odd][0].item():g}; {reason}")

"""Metrics of the real rows only. Each is a number for one batch; join the batches' rows first where it is no mean."""

import torch
from torch import Tensor

from popgeo.nn.loss import masked_mean


def accuracy(input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """The share of real rows whose largest logit is that of their class.

    Args:
        input: Logits. [rows, num_classes]
        target: Classes. [rows]
        mask: True where the row is real. [rows]

    Returns:
        Between 0 and 1; 0 without any real row. []

    Example:
        >>> logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [0.0, 9.0]])
        >>> accuracy(logits, torch.tensor([0, 0, 1]), torch.tensor([True, True, False]))
        tensor(0.5000)
    """
    if input.dim() != 2 or target.shape != input.shape[:1]:
        raise ValueError(
            f"input has shape {tuple(input.shape)}, target {tuple(target.shape)}; "
            "accuracy needs logits [rows, num_classes] and classes [rows]."
        )
    return masked_mean((input.argmax(1) == target).to(input.dtype), mask)


def r2_score(input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """1 less the squared error over the target's variance: 1 is perfect, 0 as good as the mean, NaN without variance.

    Args:
        input: Predictions. [rows]
        target: What they should be. [rows]
        mask: True where the row is real. [rows]

    Example:
        >>> r2_score(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([1.0, 3.0, 0.0]), torch.tensor([True, True, False]))
        tensor(0.5000)
    """
    _check_flat(input, target)
    error = masked_mean((input - target).square(), mask)
    variance = masked_mean((target - masked_mean(target, mask)).square(), mask)
    return 1 - error / variance


def roc_auc(input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """The chance that a row of class 1 scores above one of class 0, ties counting half: the area under the ROC curve.

    Args:
        input: Scores. [rows]
        target: 0, 1, or NaN where nobody measured. [rows]
        mask: True where the row is real. [rows]

    Returns:
        Between 0 and 1; NaN when one class is missing. []

    Example:
        >>> scores, target = torch.tensor([0.1, 0.4, 0.35, 0.8, 7.0]), torch.tensor([0.0, 0, 1, 1, torch.nan])
        >>> roc_auc(scores, target)
        tensor(0.7500)
    """
    _check_flat(input, target)
    known = ~target.isnan() if mask is None else mask & ~target.isnan()
    # Whatever is unknown sorts first and is not counted; ranks among the others are what Mann and Whitney's U needs.
    scores = torch.where(known, input, -torch.inf)
    ordered = scores.sort().values
    below = torch.searchsorted(ordered, scores)
    not_above = torch.searchsorted(ordered, scores, right=True)
    rank = (below + not_above + 1).to(torch.float64) / 2 - (~known).sum()
    positive = known & (target == 1)
    num_positive = positive.sum().to(torch.float64)
    num_negative = (known & (target == 0)).sum().to(torch.float64)
    u = torch.where(positive, rank, 0.0).sum() - num_positive * (num_positive + 1) / 2
    return (u / (num_positive * num_negative)).to(input.dtype)


def _check_flat(input: Tensor, target: Tensor) -> None:
    if input.dim() != 1 or input.shape != target.shape:
        raise ValueError(
            f"input has shape {tuple(input.shape)}, target {tuple(target.shape)}; both need the shape [rows]. "
            "Call it for each task, with input[:, task]."
        )

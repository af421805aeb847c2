"""Metrics of classes, computed from one confusion matrix of the real rows with known labels.

Names and averages follow `torchmetrics.functional`. Shapes are static, so a captured step may compute them.
"""

import torch
from torch import Tensor

from popgeo.nn.loss import known_labels
from popgeo.nn.require_classes import require_classes
from popgeo.ops.half_precision import in_float32
from popgeo.ops.refusals import check_choice


@in_float32
def confusion_matrix(
    input: Tensor, target: Tensor, mask: Tensor | None = None, num_classes: int | None = None, threshold: float = 0.5
) -> Tensor:
    """Count the rows of each class that are predicted as each class.

    Args:
        input: Logits [rows, num_classes], logits of class 1 [rows], or predicted classes as integers [rows].
        target: Classes, NaN if unknown. [rows]
        mask: True where the row is real. [rows]
        num_classes: Number of classes; required if `input` holds integers.
        threshold: Probability above which class 1 is predicted; used if `input` holds logits [rows].

    Returns:
        Counts: row is the class, column the prediction; all NaN if a prediction is NaN. [num_classes, num_classes]

    Raises:
        ValueError: the shapes differ, `num_classes` is missing, or a real row has a class that does not exist.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0], [0.0, 9.0]])
        >>> confusion_matrix(logits, torch.tensor([0, 1, 1, 0]), torch.tensor([True, True, True, False]))
        tensor([[1., 0.],
                [1., 1.]])
    """
    if target.dim() != 1 or input.shape[:1] != target.shape or input.dim() > 2:
        raise ValueError(
            f"input has shape {tuple(input.shape)}, target {tuple(target.shape)}; pass logits [rows, num_classes] or "
            "[rows], or predicted classes [rows], and classes [rows]. For several tasks use mean_over_tasks."
        )
    if input.dim() == 2:
        predicted, num_classes = input.argmax(1), input.size(1)
    elif input.is_floating_point():
        predicted, num_classes = (input.sigmoid() > threshold).long(), 2
    elif num_classes is None:
        raise ValueError("input has predicted classes; pass num_classes=, which must not depend on the data.")
    else:
        predicted = input.long()
    known = known_labels(target, mask)
    one, classes = require_classes(torch.where(known, target, 0), num_classes, torch.ones((), device=input.device))
    one, predicted = require_classes(torch.where(known, predicted, 0), num_classes, one, "input")
    rows = known.long()  # float32 counts only up to 2**24
    counts = rows.new_zeros(num_classes**2).index_add(0, classes * num_classes + predicted, rows) * one
    is_nan = input.isnan().view(len(input), -1).any(1) & known
    return torch.where(is_nan.any(), torch.nan, counts.view(num_classes, num_classes))


def precision(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    average: str | None = "micro",
    num_classes: int | None = None,
    threshold: float = 0.5,
) -> Tensor:
    """Compute the share of correct rows among all rows predicted as a class. `f1_score` explains the arguments.

    Example:
        >>> precision(torch.tensor([2.0, 1.0, -1.0]), torch.tensor([1, 0, 1]))
        tensor(0.5000)
    """
    counts = confusion_matrix(input, target, mask, num_classes, threshold)
    return _averaged(counts.diagonal(), counts.sum(0), counts, average, input)


def recall(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    average: str | None = "micro",
    num_classes: int | None = None,
    threshold: float = 0.5,
) -> Tensor:
    """Compute the share of correct rows among the rows of a class; `f1_score` explains the arguments.

    Example:
        >>> recall(torch.tensor([2.0, 1.0, 3.0, -1.0]), torch.tensor([1, 0, 1, 1]))
        tensor(0.6667)
    """
    counts = confusion_matrix(input, target, mask, num_classes, threshold)
    return _averaged(counts.diagonal(), counts.sum(1), counts, average, input)


def f1_score(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    average: str | None = "micro",
    num_classes: int | None = None,
    threshold: float = 0.5,
) -> Tensor:
    """Compute the harmonic mean of precision and recall.

    Args:
        input: Logits [rows, num_classes], logits of class 1 [rows], or predicted classes as integers [rows]. With
            logits [rows] the result is the score of class 1, and `average` has no effect.
        target: Classes, NaN if unknown. [rows]
        mask: True where the row is real. [rows]
        average: `"micro"` counts all rows together, which gives the accuracy; `"macro"` is the mean over the classes
            that occur or are predicted; `"weighted"` weights the mean by the rows of each class; `"none"` or None
            returns the score of each class, 0 for a class that does not occur.
        num_classes: Number of classes; required if `input` holds integers.
        threshold: Probability above which class 1 is predicted; used if `input` holds logits [rows].

    Returns:
        A score between 0 and 1; NaN if a prediction is NaN. [], or [num_classes] without an average

    Raises:
        ValueError: the average is unknown, the shapes differ, `num_classes` is missing, or a real row has a class that
            does not exist.

    Example:
        >>> logits = torch.eye(3)[[0, 1, 1, 2]]
        >>> f1_score(logits, torch.tensor([0, 1, 2, 2]), average="none")
        tensor([1.0000, 0.6667, 0.6667])
    """
    counts = confusion_matrix(input, target, mask, num_classes, threshold)
    return _averaged(2 * counts.diagonal(), counts.sum(0) + counts.sum(1), counts, average, input)


def _averaged(part: Tensor, whole: Tensor, counts: Tensor, average: str | None, input: Tensor) -> Tensor:
    """Return the ratio of each class, or the average of these ratios."""
    check_choice("average", average, ("micro", "macro", "weighted", "none", None))
    ratios = _ratio(part, whole)
    if input.dim() == 1 and input.is_floating_point():  # scores of one class
        return ratios[1]
    if average == "micro":
        return _ratio(part.sum(), whole.sum())
    if average in ("none", None):
        return ratios
    rows = counts.sum(1)
    weight = rows if average == "weighted" else (rows + counts.sum(0) != 0).to(rows.dtype)
    return _ratio((ratios * weight).sum(), weight.sum())


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole, and 0 where the whole is 0."""
    return torch.where(whole == 0, 0.0, part / torch.where(whole == 0, 1.0, whole))

"""Checks of classes for losses and metrics: targets are integers of existing classes."""

import torch
from torch import Tensor

from popgeo.ops.refusals import check_shapes, require


def check_classes(input: Tensor, target: Tensor, name: str) -> None:
    """Check that logits have a row for each target, and that targets are integers.

    Raises:
        ValueError: the shapes differ, or classes are not integers; the message names the function.
    """
    remedy = f"{name} needs logits [rows, num_classes] and classes [rows]."
    check_shapes(remedy, input=(input, (None, None)), target=(target, input.shape[:1]))
    if target.is_floating_point() or target.dtype == torch.bool:
        raise ValueError(f"target has dtype {target.dtype}; {name} needs classes, which are integers: target.long().")


def require_classes(classes: Tensor, num_classes: int, carried: Tensor, name: str = "target") -> tuple[Tensor, Tensor]:
    """Return `carried` after the check that all classes exist, and the classes as int64.

    Raises:
        ValueError: a class does not exist. In a captured step `carried` becomes NaN instead.
    """
    outside = (classes < 0) | (classes >= num_classes)
    if classes.is_floating_point():
        outside = outside | (classes != classes.floor())
    checked = require(
        ~outside.any(),
        carried,
        lambda: (
            f"{name}[{int(outside.nonzero()[0])}] is {classes[outside][0].item():g}; there are {num_classes} classes, "
            f"so it is 0 to {num_classes - 1}. Pass a mask that leaves out rows without a class."
        ),
    )
    return checked, torch.where(outside, 0, classes).long()

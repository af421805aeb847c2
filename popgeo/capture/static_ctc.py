"""The loss of connectionist temporal classification, worked out step by step, so that lengths may be data."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_NEVER = -1e30  # logarithm of nothing; infinity would make the gradient NaN


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """`torch.nn.functional.ctc_loss` by the forward recursion (Graves et al. 2006, section 4.1).

    Args:
        log_probs: Logarithms of the classes' probabilities. [steps, batch, classes] or [steps, classes]
        targets: Classes, each sequence in a row of its own. [batch, longest] or [longest]
        input_lengths: Steps of each sequence. [batch]
        target_lengths: Classes of each sequence. [batch]
        blank: The class between others.
        reduction: `mean`, `sum` or `none`.
        zero_infinity: Zero in place of the infinite loss of a sequence that is too long.

    Returns:
        The loss; `NotImplemented` where the targets are one after the other in a single row.

    Example:
        >>> even = torch.full((2, 1, 2), 0.5).log()
        >>> ctc_loss(even, torch.tensor([[1]]), [2], [1], reduction="sum")  # 3 of 4 paths
        tensor(0.2877)
    """
    alone = log_probs.dim() == 2
    if alone:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    steps, batch, _ = log_probs.shape
    if targets.dim() != 2 or targets.shape[0] != batch or reduction not in ("mean", "sum", "none"):
        return NotImplemented
    num_steps, num_classes = (torch.as_tensor(n).reshape(-1).to(torch.int64) for n in (input_lengths, target_lengths))
    labels = torch.full((batch, 2 * targets.shape[1] + 1), blank, dtype=torch.int64)  # blanks between and around
    labels[:, 1::2] = targets
    scores = log_probs.gather(2, labels.expand(steps, *labels.shape))  # [steps, batch, labels]
    skips = torch.nn.functional.pad((labels[:, 2:] != blank) & (labels[:, 2:] != labels[:, :-2]), (2, 0))
    first = torch.arange(labels.shape[1]) < 2
    alpha = torch.where(first, scores[0], _NEVER)
    for step in range(1, steps):
        one_back, two_back = (torch.nn.functional.pad(alpha, (n, 0), value=_NEVER)[:, : alpha.shape[1]] for n in (1, 2))
        ways = torch.stack([alpha, one_back, torch.where(skips, two_back, _NEVER)])
        alpha = torch.where((step < num_steps).unsqueeze(1), scores[step] + ways.logsumexp(0), alpha)
    last = 2 * num_classes.unsqueeze(1)
    ends = torch.cat([alpha.gather(1, last), alpha.gather(1, (last - 1).clamp(min=0))], dim=1)
    ends = torch.where(torch.stack([num_classes >= 0, num_classes > 0], 1), ends, _NEVER)
    loss = -ends.logsumexp(1)
    loss = torch.where(loss > -_NEVER / 2, 0.0 if zero_infinity else torch.inf, loss)  # [batch]
    if reduction == "mean":
        return (loss / num_classes.clamp(min=1)).mean()
    return loss.sum() if reduction == "sum" else loss.squeeze(0) if alone else loss

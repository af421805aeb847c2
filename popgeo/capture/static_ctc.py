"""The loss of connectionist temporal classification, by a recursion with shapes that do not depend on the lengths."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

_NEVER = -1e30  # for the logarithm of zero; with infinity the gradient would be NaN


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Compute `torch.nn.functional.ctc_loss` by the forward recursion (Graves et al. 2006, section 4.1).

    Args:
        log_probs: Logarithms of the classes' probabilities. [steps, batch, classes] or [steps, classes]
        targets: Classes of each sequence. [batch, longest], or [total] if `target_lengths` holds plain numbers
        input_lengths: Number of steps of each sequence. [batch]
        target_lengths: Number of classes of each sequence. [batch]
        blank: Number of the blank class. Default: 0.
        reduction: `mean`, `sum` or `none`. Default: `mean`.
        zero_infinity: Replace the infinite loss of a sequence that does not fit its steps by zero. Default: False.

    Returns:
        The loss; [batch] if `reduction` is `none`. `NotImplemented` if torch refuses the arguments, or if the targets
        are a single row and their lengths are a tensor.

    Example:
        >>> even = torch.full((2, 1, 2), 0.5).log()
        >>> ctc_loss(even, torch.tensor([[1]]), [2], [1], reduction="sum")  # 3 of 4 paths
        tensor(0.2877)
    """
    is_single = log_probs.dim() == 2
    if is_single:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    steps, batch, classes = log_probs.shape
    if targets.dim() == 1 and not isinstance(target_lengths, Tensor) and sum(target_lengths) == len(targets):
        targets = torch.nn.utils.rnn.pad_sequence(list(targets.split([*target_lengths])), batch_first=True)
    if targets.dim() != 2 or len(targets) != batch or not steps or reduction not in ("mean", "sum", "none"):
        return NotImplemented
    num_steps, num_classes = (
        torch.as_tensor(n, device=log_probs.device).reshape(-1).long() for n in (input_lengths, target_lengths)
    )
    if (len(num_steps), len(num_classes)) != (batch, batch) or not 0 <= blank < classes:
        return NotImplemented
    for name, length, most in (("input", num_steps, steps), ("target", num_classes, targets.shape[1])):
        torch._assert_async(
            ((length >= 0) & (length <= most)).all(), f"ctc_loss: one of {name}_lengths is not in 0 to {most}."
        )
    exact = log_probs if log_probs.dtype == torch.float64 else log_probs.float()
    losses = _losses(exact, targets.long(), num_steps, num_classes, blank).to(log_probs.dtype)  # [batch]
    if zero_infinity:
        losses = torch.where(losses.isinf(), 0.0, losses)
    if reduction == "mean":
        return (losses / num_classes.clamp(min=1)).mean()
    return losses.sum() if reduction == "sum" else losses.squeeze(0) if is_single else losses


def _losses(log_probs: Tensor, targets: Tensor, num_steps: Tensor, num_classes: Tensor, blank: int) -> Tensor:
    """Return the loss of each sequence: infinity if no path has its classes."""
    steps, batch, _ = log_probs.shape
    labels = torch.full((batch, 2 * targets.shape[1] + 1), blank, device=targets.device)  # blanks between and around
    labels[:, 1::2] = targets
    is_read = torch.arange(labels.shape[1], device=labels.device) <= 2 * num_classes.unsqueeze(1)
    labels = torch.where(is_read, labels, blank)  # torch does not check the rest either
    scores = log_probs.gather(2, labels.expand(steps, *labels.shape))  # [steps, batch, labels]
    skips = pad((labels[:, 2:] != blank) & (labels[:, 2:] != labels[:, :-2]), (2, 0))[:, : labels.shape[1]]
    alpha = torch.where(torch.arange(labels.shape[1], device=labels.device) == 0, scores.new_zeros(()), _NEVER)
    alpha = alpha.expand(labels.shape)  # before the first step no class has been read
    for step in range(steps):
        one_back, two_back = (pad(alpha, (n, 0), value=_NEVER)[:, : alpha.shape[1]] for n in (1, 2))
        ways = torch.stack([alpha, one_back, torch.where(skips, two_back, _NEVER)])
        alpha = torch.where((step < num_steps).unsqueeze(1), scores[step] + ways.logsumexp(0), alpha)
    last = 2 * num_classes.unsqueeze(1)
    ends = torch.cat([alpha.gather(1, last), alpha.gather(1, (last - 1).clamp(min=0))], dim=1)
    ends = torch.where(torch.stack([num_classes >= 0, num_classes > 0], 1), ends, _NEVER)
    # Torch's derivative has a term exp(log_probs), since it supposes that they are normalized.
    is_seen = torch.arange(steps, device=labels.device).unsqueeze(1) < num_steps  # [steps, batch]
    mass = torch.where(is_seen, log_probs.exp().sum(2), 0.0).sum(0)
    losses = mass - mass.detach() - ends.logsumexp(1)
    return torch.where(losses < -_NEVER / 2, losses, torch.inf)

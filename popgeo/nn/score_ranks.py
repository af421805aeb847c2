"""Ranks of right answers among scored candidates, and what is made of them."""

import math

import torch
from torch import Tensor


def filtered_ranks(scores: Tensor, target: Tensor, known: Tensor | None = None) -> Tensor:
    """The rank of each query's answer among all candidates that are not answers too.

    Candidates that score the same as the answer count half: what a random order of them would give on average. A model
    that gives all candidates one score so gets the middle rank, neither the first nor the last.

    Args:
        scores: Higher is better; -inf for what is no candidate. [num_queries, num_candidates]
        target: The answer of each query. [num_queries]
        known: True where a candidate is an answer that is known, the target or another; only the target is ranked.
            [num_queries, num_candidates]

    Returns:
        From 1 on, with halves. [num_queries]

    Raises:
        ValueError: shapes do not fit, or a score is NaN, which no order knows.

    Example:
        >>> scores = torch.tensor([[0.9, 0.5, 0.5, 0.1]])
        >>> filtered_ranks(scores, torch.tensor([1]))
        tensor([2.5000])
        >>> filtered_ranks(scores, torch.tensor([1]), torch.tensor([[True, True, False, False]]))
        tensor([1.5000])
    """
    if scores.dim() != 2 or target.shape != scores.shape[:1] or (known is not None and known.shape != scores.shape):
        raise ValueError(
            f"scores has shape {tuple(scores.shape)}, target {tuple(target.shape)}, known "
            f"{None if known is None else tuple(known.shape)}; they must be [num_queries, num_candidates], "
            "[num_queries] and that of scores."
        )
    if bool(scores.isnan().any()):
        raise ValueError("A score is NaN and has no rank. Look for the step of training in which the loss became NaN.")
    own = scores.gather(1, target.unsqueeze(1))
    others = torch.ones_like(scores, dtype=torch.bool) if known is None else ~known
    others = others.scatter(1, target.unsqueeze(1), False) & (scores > -torch.inf)
    above, equal = ((others & where).sum(1) for where in (scores > own, scores == own))
    return 1 + above + equal / 2


def hits_among(ranks: Tensor, num_candidates: Tensor, k: int, num_negatives: int) -> Tensor:
    """The chance that an answer is among the first k of itself and some negatives, drawn from its candidates.

    Inductive link prediction is measured with 50 negatives; the expectation over their draws needs none of them.

    Args:
        ranks: Ranks among all candidates; see `filtered_ranks`. [num_queries]
        num_candidates: Candidates of each query, the answer not counted. [num_queries]
        k: First places that count.
        num_negatives: Negatives that are drawn, with replacement.

    Returns:
        The chance for each query; their mean is Hits@k. [num_queries]

    Raises:
        ValueError: `k` is below 1, or there are no negatives.

    Example:
        >>> hits_among(torch.tensor([1.0, 51.0, 101.0]), torch.tensor([100, 100, 100]), k=1, num_negatives=2)
        tensor([1.0000, 0.2500, 0.0000])
    """
    if k < 1 or num_negatives < 1:
        raise ValueError(f"k is {k} and num_negatives {num_negatives}; both must be at least 1.")
    above = ((ranks - 1) / num_candidates.clamp(min=1)).clamp(max=1)  # the chance that a negative scores higher
    terms = [
        math.comb(num_negatives, i) * above**i * (1 - above) ** (num_negatives - i)
        for i in range(min(k, num_negatives + 1))
    ]
    return torch.stack(terms).sum(0)

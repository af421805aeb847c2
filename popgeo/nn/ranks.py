"""Ranks of right answers among candidates: filtered, fair to ties, and what is made of them."""

import operator
from dataclasses import dataclass

import torch
from scipy.special import bdtr
from torch import Tensor

from popgeo.ops.refusals import check_least, check_shapes, refuse_index


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranks:
    """The rank of the right answer of each query, 1 the best.

    Where others score exactly as much as the right one, its rank lies between two: that of a friend who sorts it first
    among them, and of a foe who sorts it last. Their mean is what chance would give, so that a model which scores all
    alike is not called good.

    Attributes:
        optimistic: 1 and the candidates that score more. [num_queries]
        pessimistic: The same and those that score as much. [num_queries]

    Example:
        >>> ranks = Ranks(optimistic=torch.tensor([1, 2]), pessimistic=torch.tensor([1, 6]))
        >>> ranks.realistic.tolist(), ranks.mrr(), ranks.hits(1)
        ([1.0, 4.0], 0.625, 0.5)
    """

    optimistic: Tensor
    pessimistic: Tensor

    @property
    def realistic(self) -> Tensor:
        """The mean of both. float64 [num_queries]"""
        return (self.optimistic + self.pessimistic).double() / 2

    def mrr(self) -> float:
        """The mean of 1 / rank."""
        return float((1 / self.realistic).mean())

    def hits(self, k: int) -> float:
        """The share of queries whose rank is at most k."""
        return float((self.realistic <= k).double().mean())

    def mean_rank(self) -> float:
        """The mean rank."""
        return float(self.realistic.mean())

    def hits_among(self, num_negatives: int, k: int, num_candidates: Tensor) -> float:
        """The share of queries whose answer is among the first k of itself and some negatives, drawn from the others.

        Inductive link prediction is measured with 50 negatives; the expectation over their draws needs none of them.

        Args:
            num_negatives: Negatives that are drawn for each query, with replacement.
            k: First places that count.
            num_candidates: Candidates that each query was ranked among, the answer not counted. [num_queries]

        Raises:
            ValueError: `k` is below 1, there are no negatives, or there is not one number of candidates for each query.

        Example:
            >>> ranks = Ranks(optimistic=torch.tensor([51]), pessimistic=torch.tensor([51]))
            >>> ranks.hits_among(2, k=1, num_candidates=torch.tensor([100]))  # half of them score less, twice
            0.25
        """
        check_least(1, k=k, num_negatives=num_negatives)
        check_shapes("Give one number for each rank.", num_candidates=(num_candidates, self.optimistic.shape))
        above = ((self.realistic - 1) / num_candidates.clamp(min=1)).clamp(max=1)  # a negative's chance to score higher
        n, most = operator.index(num_negatives), operator.index(k) - 1  # at most this number may score higher
        chance = bdtr(min(most, n), n, above.cpu().numpy())  # that this holds: the binomial distribution
        return float(torch.from_numpy(chance).mean())

    @staticmethod
    def join(*parts: "Ranks") -> "Ranks":
        """The ranks of several sets of queries as one."""
        return Ranks(
            optimistic=torch.cat([part.optimistic for part in parts]),
            pessimistic=torch.cat([part.pessimistic for part in parts]),
        )


def filtered_ranks(scores: Tensor, target: Tensor, known: Tensor | None = None) -> Ranks:
    """The rank of each query's answer among all candidates that are not answers too.

    For a few candidates that are scored anyway; `rank_entities` scores and ranks a whole graph's in blocks.

    Args:
        scores: Higher is better; -inf for what is not a candidate. [num_queries, num_candidates]
        target: The answer of each query. [num_queries]
        known: True where a candidate is an answer that is known, the target or another; only the target is ranked.
            [num_queries, num_candidates]

    Returns:
        The ranks of the queries, in order.

    Raises:
        ValueError: shapes do not fit, a target is out of range, `known` is not boolean, or a score is NaN, which no
            order knows.

    Example:
        >>> scores = torch.tensor([[0.9, 0.5, 0.5, 0.1]])
        >>> filtered_ranks(scores, torch.tensor([1])).realistic.tolist()
        [2.5]
        >>> filtered_ranks(scores, torch.tensor([1]), torch.tensor([[True, True, False, False]])).realistic.tolist()
        [1.5]
    """
    remedy = "scores and known are [num_queries, num_candidates], target is [num_queries]."
    check_shapes(remedy, scores=(scores, (None, None)), target=(target, scores.shape[:1]), known=(known, scores.shape))
    if known is not None and known.dtype != torch.bool:
        raise ValueError(f"known is {known.dtype}; it is boolean, True for an answer. Call known.bool().")
    if bool(scores.isnan().any()):
        raise ValueError("A score is NaN and has no rank. Look for the step of training in which the loss became NaN.")
    refuse_index("target", target, scores.size(1))
    target = target.long()
    own = scores.gather(1, target.unsqueeze(1))
    others = torch.ones_like(scores, dtype=torch.bool) if known is None else ~known
    others = others.scatter(1, target.unsqueeze(1), False) & (scores > -torch.inf)
    above, equal = ((others & where).sum(1) for where in (scores > own, scores == own))
    return Ranks(optimistic=1 + above, pessimistic=1 + above + equal)

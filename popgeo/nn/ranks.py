"""Ranks of correct answers among candidates, filtered and fair to ties, and metrics of these ranks."""

import operator
from dataclasses import dataclass

import torch
from scipy.special import bdtr
from torch import Tensor

from popgeo.ops.refusals import check_least, check_shapes, refuse_index


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranks:
    """The rank of each query's correct answer; 1 is the best.

    If other candidates have exactly the same score, the rank lies between two numbers: the optimistic rank counts the
    correct answer first among them, the pessimistic rank last. Their mean is the expectation for a random order, so
    that a model with equal scores for all candidates gets no good rank.

    Attributes:
        optimistic: 1 + the number of candidates with a higher score. [num_queries]
        pessimistic: The optimistic rank + the number of candidates with the same score. [num_queries]

    Example:
        >>> ranks = Ranks(optimistic=torch.tensor([1, 2]), pessimistic=torch.tensor([1, 6]))
        >>> ranks.realistic.tolist(), ranks.mrr(), ranks.hits(1)
        ([1.0, 4.0], 0.625, 0.5)
    """

    optimistic: Tensor
    pessimistic: Tensor

    @property
    def realistic(self) -> Tensor:
        """The mean of the optimistic and the pessimistic rank. float64 [num_queries]."""
        return (self.optimistic + self.pessimistic).double() / 2

    def mrr(self) -> float:
        """Return the mean reciprocal rank."""
        return float((1 / self.realistic).mean())

    def hits(self, k: int) -> float:
        """Return the share of queries with a rank of at most k."""
        return float((self.realistic <= k).double().mean())

    def mean_rank(self) -> float:
        """Return the mean rank."""
        return float(self.realistic.mean())

    def hits_among(self, num_negatives: int, k: int, num_candidates: Tensor) -> float:
        """Return the expected hits@k if each answer is ranked among randomly drawn negatives.

        Inductive link prediction is measured with 50 negatives. This is the expectation over their draws, so nothing is
        drawn.

        Args:
            num_negatives: Negatives of each query, drawn with replacement.
            k: First places that count.
            num_candidates: Candidates of each query, without the answer. [num_queries]

        Raises:
            ValueError: `k` is below 1, there are no negatives, or `num_candidates` has the wrong shape.

        Example:
            >>> ranks = Ranks(optimistic=torch.tensor([51]), pessimistic=torch.tensor([51]))
            >>> ranks.hits_among(2, k=1, num_candidates=torch.tensor([100]))  # half of them score lower, twice
            0.25
        """
        check_least(1, k=k, num_negatives=num_negatives)
        check_shapes("Give one number for each rank.", num_candidates=(num_candidates, self.optimistic.shape))
        above = ((self.realistic - 1) / num_candidates.clamp(min=1)).clamp(max=1)  # a negative's chance to score higher
        n, most = operator.index(num_negatives), operator.index(k) - 1  # number of negatives that may score higher
        chance = bdtr(min(most, n), n, above.cpu().numpy())  # the binomial distribution function
        return float(torch.from_numpy(chance).mean())

    @staticmethod
    def join(*parts: "Ranks") -> "Ranks":
        """Concatenate the ranks of several sets of queries."""
        return Ranks(
            optimistic=torch.cat([part.optimistic for part in parts]),
            pessimistic=torch.cat([part.pessimistic for part in parts]),
        )


def filtered_ranks(scores: Tensor, target: Tensor, known: Tensor | None = None) -> Ranks:
    """Rank each query's answer among all candidates except other known answers.

    Use it for given scores of a few candidates; `rank_entities` scores and ranks all entities of a graph in blocks.

    Args:
        scores: Scores, higher for better candidates, and -inf for entries that are no candidates.
            [num_queries, num_candidates]
        target: Answer of each query. [num_queries]
        known: True where a candidate is a known answer, including the target; other known answers are not ranked.
            [num_queries, num_candidates]

    Returns:
        The ranks of the queries, in order.

    Raises:
        ValueError: shapes do not fit, a target is out of range, `known` is not boolean, or a score is NaN and has no
            order.

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

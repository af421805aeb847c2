"""Losses that compare triples with negatives. Masked rows change neither the loss nor a gradient."""

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from popgeo.nn.loss import masked_mean
from popgeo.ops.half_precision import in_float32

TripleLoss = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | float | None], Tensor]
# The score of a negative that does not count. It is finite, so that rows without negatives have gradients of 0.
_NEVER = -1e30


class _MeanLoss:
    """The base class of losses that are means over triples; subclasses compute the loss of each triple."""

    @in_float32
    def __call__(
        self,
        positive: Tensor,
        negative: Tensor,
        counts: Tensor,
        mask: Tensor | None = None,
        divide_by: Tensor | float | None = None,
    ) -> Tensor:
        """Return the mean loss of the real triples.

        Args:
            positive: Scores of the triples. [...]
            negative: Scores of their negatives. [..., num_negatives]
            counts: False for an entry that is no negative, such as the triple itself. [..., num_negatives]
            mask: True where the triple is real. [...]
            divide_by: Divisor of the sum instead of the number of real triples; see `masked_mean`.

        Returns:
            []
        """
        return masked_mean(self.of_triples(positive, negative, counts), mask, divide_by)

    @abstractmethod
    def of_triples(self, positive: Tensor, negative: Tensor, counts: Tensor) -> Tensor:
        """Return the loss of each triple, [...]; `__call__` explains the arguments."""


class LogSigmoidLoss(_MeanLoss):
    """The loss -log sigmoid of positive scores and of negated negative scores (arXiv:1902.10197, eq. 5 and 6).

    Negatives with higher scores have larger weights.

    Args:
        margin: Number added to every score; gamma of the paper if scores are negated distances without a margin.
        temperature: Strength of the weights of negatives with higher scores; 0 gives all the same weight. The weights
            have no gradient.

    Example:
        >>> loss = LogSigmoidLoss(temperature=1.0)
        >>> loss(torch.tensor([2.0]), torch.tensor([[-2.0, 0.0]]), torch.tensor([[True, False]]))
        tensor(0.1269)
    """

    def __init__(self, margin: float = 0.0, temperature: float = 1.0) -> None:
        self.margin, self.temperature = margin, temperature

    def of_triples(self, positive: Tensor, negative: Tensor, counts: Tensor) -> Tensor:
        """Return half the loss of each positive plus half the loss of its negatives. [...]."""
        score = torch.where(counts, negative + self.margin, _NEVER)
        share = (self.temperature * score.detach()).softmax(-1) if self.temperature else counts.to(score.dtype)
        share = torch.where(counts, share, 0.0)
        share = share / share.sum(-1, keepdim=True).clamp(min=1e-12)
        of_negatives = (share * F.softplus(score)).sum(-1)  # -log sigmoid(-x) = softplus(x)
        return (F.softplus(-positive - self.margin) + of_negatives) / 2


class SoftmaxLoss(_MeanLoss):
    """The cross-entropy of the true entity among itself and the negatives (arXiv:1806.07297, eq. 7).

    Args:
        num_entities: Number of entities from which negatives are drawn. The exponentials of negatives are then scaled
            up to represent all other entities, as in sampled softmax. Default: negatives are all other entities.

    Example:
        >>> loss = SoftmaxLoss()
        >>> loss(torch.tensor([0.0]), torch.tensor([[0.0, 0.0, 9.0]]), torch.tensor([[True, True, False]]))
        tensor(1.0986)
    """

    def __init__(self, num_entities: int | None = None) -> None:
        self.num_entities = num_entities

    def of_triples(self, positive: Tensor, negative: Tensor, counts: Tensor) -> Tensor:
        """Return log(e^p + e^o) - p for the score p of each triple and the sum e^o over its negatives. [...]."""
        others = torch.where(counts, negative, _NEVER).logsumexp(-1)
        if self.num_entities is not None:
            others = others + math.log(max(1, self.num_entities - 1)) - counts.sum(-1).clamp(min=1).log()
        return F.softplus(others - positive)

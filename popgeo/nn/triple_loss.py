"""Losses of triples against negatives: masked ones, of either kind, change neither value nor gradient."""

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from popgeo.nn.loss import masked_mean
from popgeo.ops.half_precision import in_float32

TripleLoss = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | float | None], Tensor]
# Stands for the score of a negative that does not count; finite, so that rows without any have gradients of 0, not NaN.
_NEVER = -1e30


class _MeanLoss:
    """The mean of each triple's loss, which the kinds of losses differ in."""

    @in_float32
    def __call__(
        self,
        positive: Tensor,
        negative: Tensor,
        counts: Tensor,
        mask: Tensor | None = None,
        divide_by: Tensor | float | None = None,
    ) -> Tensor:
        """The mean over the real triples.

        Args:
            positive: Scores of the triples. [...]
            negative: Scores of what is in their place. [..., num_negatives]
            counts: False for a row that is not a negative, such as the triple itself. [..., num_negatives]
            mask: True where the triple is real. [...]
            divide_by: What to divide the sum by; see `masked_mean`.

        Returns:
            []
        """
        return masked_mean(self.of_triples(positive, negative, counts), mask, divide_by)

    @abstractmethod
    def of_triples(self, positive: Tensor, negative: Tensor, counts: Tensor) -> Tensor:
        """The loss of each triple; arguments as above. [...]"""


class LogSigmoidLoss(_MeanLoss):
    """-log sigmoid of positives, and of minus the negatives, harder ones weighing more (arXiv:1902.10197, eq. 5 and 6).

    Args:
        margin: Added to every score; gamma of the paper where the scores are distances without one.
        temperature: How much more the negatives with higher scores weigh; 0 weighs all alike. The weights have no
            gradient.

    Example:
        >>> loss = LogSigmoidLoss(temperature=1.0)
        >>> loss(torch.tensor([2.0]), torch.tensor([[-2.0, 0.0]]), torch.tensor([[True, False]]))
        tensor(0.1269)
    """

    def __init__(self, margin: float = 0.0, temperature: float = 1.0) -> None:
        self.margin, self.temperature = margin, temperature

    def of_triples(self, positive: Tensor, negative: Tensor, counts: Tensor) -> Tensor:
        """Half the loss of the positive and half that of its negatives. [...]"""
        score = torch.where(counts, negative + self.margin, _NEVER)
        share = (self.temperature * score.detach()).softmax(-1) if self.temperature else counts.to(score.dtype)
        share = torch.where(counts, share, 0.0)
        share = share / share.sum(-1, keepdim=True).clamp(min=1e-12)
        of_negatives = (share * F.softplus(score)).sum(-1)  # -log sigmoid(-x) = softplus(x)
        return (F.softplus(-positive - self.margin) + of_negatives) / 2


class SoftmaxLoss(_MeanLoss):
    """Cross-entropy of the true entity among it and the negatives (arXiv:1806.07297, eq. 7, with all others as these).

    Args:
        num_entities: Where negatives are drawn from that many entities: their exponentials are then scaled up to stand
            for all others, as sampled softmax does. None takes the negatives for all that there are.

    Example:
        >>> loss = SoftmaxLoss()
        >>> loss(torch.tensor([0.0]), torch.tensor([[0.0, 0.0, 9.0]]), torch.tensor([[True, True, False]]))
        tensor(1.0986)
    """

    def __init__(self, num_entities: int | None = None) -> None:
        self.num_entities = num_entities

    def of_triples(self, positive: Tensor, negative: Tensor, counts: Tensor) -> Tensor:
        """log(e^p + e^o) - p for the score p of a triple and e^o, the sum over its negatives. [...]"""
        others = torch.where(counts, negative, _NEVER).logsumexp(-1)
        if self.num_entities is not None:
            others = others + math.log(max(1, self.num_entities - 1)) - counts.sum(-1).clamp(min=1).log()
        return F.softplus(others - positive)

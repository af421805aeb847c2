"""Noisy nodes: training corrupts categories of atoms or bonds, and the model learns to predict the original ones."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from popgeo.nn.loss import cross_entropy
from popgeo.ops.refusals import check_shapes


class Denoiser(nn.Module):
    """A module that corrupts categories and predicts the original ones.

    The method is that of arXiv:2106.07971, for categories as in sec. 4.3 of arXiv:2212.02229. Pass `corrupt(x)` to the
    model, and add `loss`, computed on the model's features of each row, to the model's own loss.

    Args:
        channels: Features of a row in the model's result.
        num_kinds: Number of categories in each column.
        probability: Probability that training replaces an entry by a uniformly drawn category.

    Raises:
        ValueError: there is no column, a column has no categories, or the probability is outside 0 to 1.

    Example:
        >>> denoiser = Denoiser(channels=4, num_kinds=[9, 2], probability=0.5)
        >>> x = torch.tensor([[8, 0], [1, 1]])
        >>> noisy = denoiser.corrupt(x)
        >>> noisy.shape, denoiser.loss(torch.randn(2, 4), x).shape
        (torch.Size([2, 2]), torch.Size([]))
        >>> torch.equal(denoiser.eval().corrupt(x), x)
        True
    """

    kinds: Tensor

    def __init__(self, channels: int, num_kinds: Sequence[int], probability: float = 0.01) -> None:
        super().__init__()
        if not num_kinds or min(num_kinds) < 1:
            raise ValueError(f"num_kinds is {list(num_kinds)}; each column of categories needs at least one kind.")
        if not 0 <= probability <= 1:
            raise ValueError(f"probability is {probability}; it must be from 0 to 1.")
        self.num_kinds = tuple(num_kinds)
        self.probability = probability
        self.lin = nn.Linear(channels, sum(num_kinds))
        self.register_buffer("kinds", torch.tensor(self.num_kinds), persistent=False)

    def corrupt(self, x: Tensor) -> Tensor:
        """Replace some categories in training; otherwise return them unchanged. int64 [rows, columns]."""
        if not self.training or self.probability == 0:
            return x
        draw = torch.rand(x.shape, device=x.device)
        # A draw below the probability is uniform there, so that, scaled up, it also chooses the kind.
        kind = (draw / self.probability * self.kinds).long().clamp(min=0).minimum(self.kinds - 1)
        return torch.where(draw < self.probability, kind, x)

    def loss(self, rows: Tensor, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the mean cross-entropy over real rows and columns.

        Args:
            rows: The model's features of each row. [rows, channels]
            x: Original categories. int64 [rows, columns]
            mask: True where the row is real. [rows]

        Raises:
            ValueError: the number of columns is not that of `num_kinds`.
        """
        check_shapes(f"It needs {len(self.num_kinds)} columns of categories.", x=(x, (None, len(self.num_kinds))))
        logits = self.lin(rows).split(self.num_kinds, 1)
        losses = [cross_entropy(part, x[:, i], mask) for i, part in enumerate(logits)]
        return torch.stack(losses).mean()

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"num_kinds={self.num_kinds}, probability={self.probability}"

"""Noisy nodes: categories of atoms or bonds are corrupted in training, and the model has to tell what they were."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from popgeo.nn.loss import cross_entropy
from popgeo.ops.refusals import check_shapes


class Denoiser(nn.Module):
    """Corrupts categories and predicts what they were (arXiv:2106.07971; sec. 4.3 of arXiv:2212.02229 for categories).

    The model sees `corrupt(x)`; the error of `loss`, on what it made of each row, is added to its own.

    Args:
        channels: Features that the model makes of a row.
        num_kinds: Kinds of each column.
        probability: That an entry is replaced by a kind drawn evenly, in training.

    Raises:
        ValueError: no columns, one without kinds, or a probability outside 0 to 1.

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
        """In training the categories with some replaced; otherwise as they are. int64 [rows, columns]"""
        if not self.training or self.probability == 0:
            return x
        draw = torch.rand(x.shape, device=x.device)
        # Below the probability the draw itself, stretched, says which kind: it is even there too.
        kind = (draw / self.probability * self.kinds).long().clamp(min=0).minimum(self.kinds - 1)
        return torch.where(draw < self.probability, kind, x)

    def loss(self, rows: Tensor, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mean cross-entropy over real rows and columns.

        Args:
            rows: What the model made of each row. [rows, channels]
            x: The categories before they were corrupted. int64 [rows, columns]
            mask: True where the row is real. [rows]

        Raises:
            ValueError: there are not as many columns as `num_kinds` says.
        """
        check_shapes(f"It needs {len(self.num_kinds)} columns of categories.", x=(x, (None, len(self.num_kinds))))
        logits = self.lin(rows).split(self.num_kinds, 1)
        losses = [cross_entropy(part, x[:, i], mask) for i, part in enumerate(logits)]
        return torch.stack(losses).mean()

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"num_kinds={self.num_kinds}, probability={self.probability}"

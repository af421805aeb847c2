"""Marks what torch's own loss functions return, so that a model's loss is found wherever it stands."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from popgeo.capture.identity_loss import identity_loss

_NAMES = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy", "ctc_loss",
    "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss", "poisson_nll_loss",
    "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
)  # fmt: skip
_LOSSES = frozenset(getattr(functional, name) for name in _NAMES)


@contextlib.contextmanager
def losses_marked() -> Iterator[None]:
    """Marks each result of torch's loss functions, those of `torch.nn`'s modules too, while the block runs.

    A model that is compiled meanwhile is trained on the loss that all others feed, whatever else it returns, and is
    refused where there are several that do not depend on each other, as PopTorch finds and refuses them.

    Example:
        >>> import torch
        >>> from popgeo.ipu import training_model
        >>> class Scores(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.linear = torch.nn.Linear(2, 3)
        ...     def forward(self, x, y):
        ...         scores = self.linear(x)
        ...         return scores.sum(), torch.nn.functional.cross_entropy(scores, y), scores.max()
        >>> model = training_model(Scores())
        >>> with losses_marked():
        ...     total, loss, largest = model(torch.ones(1, 2), torch.tensor([2]))
        >>> loss.shape
        torch.Size([])
    """
    with _Marks():
        yield


class _Marks(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        marks = func in _LOSSES and isinstance(made, Tensor) and made.requires_grad
        return identity_loss(made, "none") if marks else made

"""Marks of the tensor from which the backward pass starts, set by the user or on results of torch's loss functions."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from popgeo.capture.op_graph import shape_text


@torch.library.custom_op("popgeo::identity_loss", mutates_args=())
def _mark(x: Tensor) -> Tensor:
    return x.clone()


_mark.register_fake(torch.empty_like)
_mark.register_autograd(lambda context, grad: grad)


def identity_loss(x: Tensor, reduction: str = "mean") -> Tensor:
    """Reduce a tensor and mark it as the loss of a training model.

    A model whose only scalar result with a gradient is the loss does not need it. Of several marked tensors, the loss
    is the one that depends on all others. Without a reduction, the backward pass starts from the sum of the elements.

    Args:
        x: Losses. [any shape]
        reduction: `mean`, `sum`, or `none` to keep the shape. Default: `mean`.

    Returns:
        The loss. []; with `none` the shape of `x`

    Raises:
        ValueError: the reduction is not one of these.

    Example:
        >>> identity_loss(torch.tensor([1.0, 3.0]), reduction="sum")
        tensor(4.)
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"Unsupported reduction type! identity_loss got {reduction!r}, not 'mean', 'sum' or 'none'.")
    return _mark(x if reduction == "none" else getattr(x, reduction)())


def describe_missing_loss(results: Sequence[Tensor]) -> str:
    """Describe the results of a model without a loss, and how to make one of them a loss."""
    if cut := [tensor for tensor in results if tensor.numel() == 1 and not tensor.requires_grad]:
        return (
            f"no scalar that depends on a parameter: {len(cut)} of one element are cut off from all of them, as by "
            "detach(), item(), no_grad() or torch.utils.checkpoint with use_reentrant=True (pass False)"
        )
    forms = ", ".join(shape_text(t) for t in results if t.requires_grad)
    remedy = ": take the mean() or sum() of the losses" if forms else ""
    return f"no scalar that depends on a parameter, but {forms or 'nothing that does'}{remedy}"


_LOSSES = frozenset(  # found by name, so that losses of later versions of torch are included
    made
    for name, made in vars(functional).items()
    if name.endswith("_loss") or "cross_entropy" in name or name == "kl_div"
)


def losses_marked() -> AbstractContextManager[Any]:
    """Mark each result of torch's loss functions as a loss while the block runs; modules of `torch.nn` call them, too.

    A model that is compiled in the block is trained on the loss that depends on all others, whatever else it returns.
    It is refused if several losses do not depend on each other. PopTorch finds and refuses losses in the same way.

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
    return _LossMarkMode()


class _LossMarkMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        marks = func in _LOSSES and isinstance(made, Tensor) and made.requires_grad
        return identity_loss(made, "none") if marks else made

"""Marks which tensor the backward pass starts from: by hand, or each that torch's own loss functions return."""

import contextlib
from collections.abc import Iterator, Sequence
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
    """Marks a tensor as the loss of a training model, after reducing it.

    A model with a single scalar result that needs a gradient does not need it. Of several marked tensors the one counts
    that all others take part in; without a reduction the backward pass starts from the sum of its elements.

    Args:
        x: Losses. [any shape]
        reduction: `mean`, `sum`, or `none` to keep the shape.

    Returns:
        The loss. []; with `none` the shape of `x`

    Raises:
        ValueError: another reduction.

    Example:
        >>> identity_loss(torch.tensor([1.0, 3.0]), reduction="sum")
        tensor(4.)
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"Unsupported reduction type! identity_loss got {reduction!r}, not 'mean', 'sum' or 'none'.")
    return _mark(x if reduction == "none" else getattr(x, reduction)())


def instead_of_a_loss(results: Sequence[Tensor]) -> str:
    """What a model returns that returns no scalar which depends on a parameter, and what would make it one."""
    if cut := [tensor for tensor in results if tensor.numel() == 1 and not tensor.requires_grad]:
        return (
            f"no scalar that depends on a parameter: {len(cut)} of one element are cut off from all of them, as by "
            "detach(), item(), no_grad() or torch.utils.checkpoint with use_reentrant=True (pass False)"
        )
    forms = ", ".join(shape_text(t) for t in results if t.requires_grad)
    remedy = ": take the mean() or sum() of the losses" if forms else ""
    return f"no scalar that depends on a parameter, but {forms or 'nothing that does'}{remedy}"


_LOSSES = frozenset(  # those that torch adds, too
    made
    for name, made in vars(functional).items()
    if name.endswith("_loss") or "cross_entropy" in name or name == "kl_div"
)


@contextlib.contextmanager
def losses_marked() -> Iterator[None]:
    """Marks each result of torch's loss functions, also if a module of `torch.nn` calls them, while the block runs.

    A model that is compiled meanwhile is trained on the loss that all others feed, whatever else it returns, and is
    refused if there are several that do not depend on each other, as PopTorch finds and refuses them.

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
    with _LossMarkMode():
        yield


class _LossMarkMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        marks = func in _LOSSES and isinstance(made, Tensor) and made.requires_grad
        return identity_loss(made, "none") if marks else made

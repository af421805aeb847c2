"""What torch's habits would do around a compiled step silently: said when it happens."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from popgeo.ops.eager import is_plain, transforms_around

_OF_GRAPHS = {"edge_index", "batch", "nodes_mask", "edges_mask", "graphs_mask"}
_DONE = (
    "The compiled step has run the backward pass and the optimizer's update already, and leaves no gradients. Leave "
    "out {what}; gradients are clipped by compile_step(..., options=StepOptions(max_grad_norm=1.0))."
)


def refuse_transforms() -> None:
    """Refuse a call of a compiled step that something around it transforms, traces or runs without data.

    Raises:
        ValueError: `torch.func`, forward-mode derivatives, `torch.jit.trace`, fake tensors or a capture surround it.
    """
    if is_compiling() or is_plain():  # torch.compile leaves the step out of its own graph
        return
    if around := transforms_around():
        raise ValueError(
            f"A compiled step was called inside {around}, which would have to see each operation; a compiled step "
            "runs as a whole, without derivatives. Call the model itself there, or call the step outside."
        )


class _WithoutDerivative(torch.autograd.Function):
    """The identity, whose derivative is refused."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, argument: Tensor) -> Tensor:
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> NoReturn:
        raise ValueError(
            "A compiled forward pass has no derivative to its arguments, and one of them requires a gradient. Take "
            "derivatives inside the model, by torch.autograd.grad, and compile that; or call the model itself."
        )


def without_derivative(results: Sequence[Tensor], arguments: Sequence[Tensor]) -> Sequence[Tensor]:
    """Let a backward pass through the results explain itself, if an argument requires a gradient.

    Args:
        results: Of a forward pass.
        arguments: Of the call.
    """
    differentiated = next((one for one in arguments if one.requires_grad), None)
    if differentiated is None or not torch.is_grad_enabled():
        return results
    return [_WithoutDerivative.apply(one, differentiated) if one.is_floating_point() else one for one in results]


def mark_as_done(results: Iterable[Tensor]) -> None:
    """Lets `backward()` of what a training step returns explain why there is nothing to do."""
    for tensor in results:
        if tensor.numel() == 1:
            tensor.backward = _refuse_backward  # type: ignore[method-assign]


def _refuse_backward(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(_DONE.format(what="loss.backward()"))


def refuse_empty_updates(optimizer: Optimizer) -> None:
    """Lets `step()` of an optimizer explain why there is nothing to do, if no parameter has a gradient."""
    if refuse_empty_update not in optimizer._optimizer_step_pre_hooks.values():
        optimizer.register_step_pre_hook(refuse_empty_update)


def refuse_empty_update(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """The hook of `refuse_empty_updates`.

    Raises:
        RuntimeError: no parameter has a gradient.
    """
    if all(parameter.grad is None for group in optimizer.param_groups for parameter in group["params"]):
        raise RuntimeError(_DONE.format(what="optimizer.step(), and clip_grad_norm_ before it"))


def warn_of_padded_norms(model: nn.Module, names: Iterable[str]) -> None:
    """Warns of torch's norms of batches in a step of graphs: their means count the rows of padding.

    Args:
        model: The captured model, in the mode that it runs in.
        names: What its arguments are called.
    """
    ours = {id(one._modules.get("module")) for one in model.modules() if type(one).__module__ == "popgeo.nn.norm"}
    norms = [(name, one) for name, one in model.named_modules() if isinstance(one, _BatchNorm) and one.training]
    others = [(name, one) for name, one in norms if not type(one).__module__.startswith("popgeo.")]
    found = [name for name, one in others if id(one) not in ours]
    if found and not _OF_GRAPHS.isdisjoint(name.rpartition(".")[2] for name in names):
        warnings.warn(
            f"{', '.join(found)} of the model takes means over all rows of a batch, padding too. Use "
            "popgeo.nn.BatchNorm with nodes_mask=, or popgeo.nn.convert_norms(model); "
            "popgeo.testing.check_padding_invariance tells whether padding matters.",
            stacklevel=2,
        )

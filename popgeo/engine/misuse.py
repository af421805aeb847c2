"""What torch's habits would do around a compiled step silently: said when it happens."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from popgeo import largest_graph
from popgeo.capture.arguments import Arguments
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import Role
from popgeo.capture.pytree import unflatten
from popgeo.capture.structures import leaves
from popgeo.ops.eager import is_plain, transforms_around

_OF_GRAPHS = {"edge_index", "batch", "nodes_mask", "edges_mask", "graphs_mask"}
_MASKS = ("nodes_mask", "seeds_mask", "edges_mask", "edge_label_mask", "graphs_mask")
_NO_LABELS = ("cell", "pbc", "charge", "u")  # features of graphs
_WHOLE = (torch.int64, torch.int32)
_A_MASK = "(mask)"
_CHOOSE_ROWS = ("aten.slice", "aten.index", "aten.select", "aten.narrow", "aten.gather")
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


class _NonDifferentiableIdentity(torch.autograd.Function):
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


def without_derivative(results: list[Tensor], arguments: Sequence[Tensor]) -> list[Tensor]:
    """Let a backward pass through the results explain itself, if an argument requires a gradient.

    Args:
        results: Of a forward pass.
        arguments: Of the call.
    """
    differentiated = next((one for one in arguments if one.requires_grad), None)
    if differentiated is None or not torch.is_grad_enabled():
        return results
    return [
        _NonDifferentiableIdentity.apply(one, differentiated) if one.is_floating_point() else one for one in results
    ]


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


def check_masks_of_loss(step: CapturedStep, arguments: Arguments, num_steps: int) -> None:
    """Check that the loss of a training step leaves padding and sampled neighbors out, as far as its graph shows it.

    Args:
        step: The captured step.
        arguments: Those of a call, with the tensors of one micro-batch.
        num_steps: Micro-batches of a call.

    Raises:
        ValueError: the model takes a batch with seeds, and its loss reads `train_mask` or its like instead of them.

    Warns:
        UserWarning: the loss reads labels of all rows of a batch that has masks, and none of these.
    """
    read = _read_by_loss(step)
    for batch in arguments.graph_data:
        if hasattr(type(batch), "refuse_names"):
            batch.refuse_names({path.rpartition(".")[2] for path in read}, ())
    if _A_MASK in read or any("weight" in name for name in read):  # which may be 0 in padding
        return
    rows = _padded_rows(arguments, num_steps)
    for (path, _), tensor in zip(leaves(arguments.structure), arguments.tensors, strict=True):
        name, mask = path.rpartition(".")[2], rows.get(len(tensor) if tensor.dim() else -1)
        is_label = name == "y" or "label" in name or "target" in name
        if mask is None or path not in read or name in _NO_LABELS or (mask != "graphs_mask" and not is_label):
            continue
        if tensor.dtype in _WHOLE and bool((tensor[-1:] < 0).all()):
            continue  # torch's losses leave such a class out
        warnings.warn(
            f"The loss reads all rows of {path}, those of padding too, and no mask. Use a loss of popgeo.nn, such as "
            f"popgeo.nn.mse_loss(out, y, {mask}), with {mask}; or fill labels of padding with a class that torch "
            "leaves out, as FixedSizeOptions(..., graph_pad_value=-100) does for graphs.",
            stacklevel=2,
        )


def _padded_rows(arguments: Arguments, num_steps: int) -> dict[int, str]:
    """Return for each number of rows that includes padding the mask of these rows, as far as a call shows it."""
    whole = [*arguments.graph_data, *([] if arguments.batch is None else [arguments.batch])]
    masks = [(name, store[name]) for batch in whole for store in batch.stores for name in _MASKS if name in store]
    found = {len(mask) // num_steps: name for name, mask in masks if bool(mask.any())}
    count = unflatten(arguments.structure, arguments.tensors).get("num_graphs")
    if isinstance(count, int) and largest_graph.noted(arguments.tensors) is not None:  # a loader has made `batch`
        found[count] = "graphs_mask"
    return found


def _read_by_loss(step: CapturedStep) -> set[str]:
    """Return the arguments whose rows the loss depends on, and `_A_MASK` if one is boolean or a mask is made of them.

    Weights count as an argument without a name: what depends on them is no mask.
    """
    graph = step.graph
    if step.loss is None or (loss := graph.outputs[step.loss]) is None:
        return set()
    masks = {v for v, value in enumerate(graph.values) if value.dtype is torch.bool}
    found = {v: {one.name if one.role is Role.ARGUMENT else ""} for one, v in graph.inputs.items()}
    found |= {v: {one.name, _A_MASK} for one, v in graph.inputs_of(Role.ARGUMENT).items() if v in masks}
    for op in (op for op in graph.ops if op.phase == "forward"):
        made, read = op.makes(), op.reads()
        if op.target.startswith(_CHOOSE_ROWS):
            rows = {graph.values[v].shape[:1] for v in made}
            read = tuple(v for v in read if graph.values[v].shape[:1] in rows)
        names = set[str]().union(*(found.get(v, ()) for v in read))
        if names and "" not in names and not masks.isdisjoint(made):
            names.add(_A_MASK)
        changed = {graph.values[v].storage for v in op.writes}
        others = [v for v in found if graph.values[v].storage in changed] if changed else []
        found |= {v: found.get(v, set()) | names for v in (*made, *others)}
    return found.get(loss, set())

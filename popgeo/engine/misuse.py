"""Errors and warnings for usual PyTorch code that has no effect, or a wrong one, with a compiled step."""

import inspect
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
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
from popgeo.capture.pytree import is_graph_data, unflatten
from popgeo.capture.structures import leaves
from popgeo.ops.eager import is_plain, transforms_around

_OF_GRAPHS = {"edge_index", "batch", "nodes_mask", "edges_mask", "graphs_mask"}
_MASKS = ("nodes_mask", "seeds_mask", "edges_mask", "edge_label_mask", "graphs_mask")
_NO_LABELS = ("cell", "pbc", "charge", "u")  # features of graphs
_WHOLE = (torch.int64, torch.int32)
_A_MASK = "(mask)"
_REQUIRES_GRAD = attrgetter("requires_grad")
_CHOOSE_ROWS = ("aten.slice", "aten.index", "aten.select", "aten.narrow", "aten.gather")
_DONE = (
    "The compiled step has run the backward pass and the optimizer's update already, and leaves no gradients. Leave "
    "out {what}; gradients are clipped by compile_step(..., options=StepOptions(max_grad_norm=1.0))."
)


def refuse_transforms() -> None:
    """Raise if the caller would transform or trace a compiled step.

    Raises:
        ValueError: `torch.func`, forward-mode derivatives, `torch.jit.trace`, fake tensors or a capture surround the
            call.
    """
    if is_plain() or is_compiling():  # torch.compile leaves the step out of its own graph
        return
    if around := transforms_around():
        raise ValueError(
            f"A compiled step was called inside {around}, which has to see each operation; a compiled step runs as a "
            "whole, without derivatives. Call the model itself there, or call the step outside."
        )


def refuse_no_grad() -> None:
    """Raise if gradients are switched off around a call of a training step.

    Raises:
        ValueError: gradients are switched off.
    """
    if not torch.is_grad_enabled():
        raise ValueError(
            "A training step updates the weights in each call, also within torch.no_grad(), where loss.backward() "
            "fails. To evaluate, call popgeo.compile_forward(model.eval()), or popgeo.inference_model, which "
            "follow the weights; to train, call the step outside of no_grad() and inference_mode()."
        )


@contextmanager
def explain_failed_batch(signature: inspect.Signature, given: Iterable[Any]) -> Iterator[None]:
    """Explain a TypeError or AttributeError of the block if one of these arguments is graph data.

    Args:
        signature: The signature of the model.
        given: The arguments of the call.

    Raises:
        ValueError: the block failed; the message names an attribute that the graph data do not have.
    """
    try:
        yield
    except (TypeError, AttributeError) as error:
        batch = next(filter(is_graph_data, given), None)
        if batch is None:
            raise
        held = sorted(batch.keys())
        wanted = next((name for name in signature.parameters if name not in held), None)
        raise ValueError(
            f"The model was given a {type(batch).__name__} and failed: {error}. The batch has no "
            f"{'such attribute' if wanted is None else f'attribute {wanted}'}; it has {', '.join(held)}. If the model "
            f"takes tensors, pass those of the batch, such as step(batch.x, batch.edge_index), by the names in "
            f"{signature}."
        ) from error


class _NonDifferentiableIdentity(torch.autograd.Function):
    """The identity function; its backward pass raises."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, argument: Tensor) -> Tensor:
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> NoReturn:
        raise ValueError(
            "A compiled forward pass has no derivative with respect to its arguments, and one of them requires a "
            "gradient. Take derivatives inside the model, by torch.autograd.grad, and compile that; or call the model "
            "itself."
        )


def without_derivative(results: list[Tensor], arguments: Sequence[Tensor]) -> list[Tensor]:
    """Return the results of a forward pass; if an argument requires a gradient, their backward pass raises.

    Args:
        results: The results of a call.
        arguments: The arguments of the call.
    """
    if not torch.is_grad_enabled() or not any(map(_REQUIRES_GRAD, arguments)):
        return results
    differentiated = next(filter(_REQUIRES_GRAD, arguments))
    return [
        _NonDifferentiableIdentity.apply(one, differentiated) if one.is_floating_point() else one for one in results
    ]


def mark_as_done(results: Iterable[Tensor]) -> None:
    """Make `backward()` of a training step's results raise, since the step has run the backward pass."""
    for tensor in results:
        if tensor.numel() == 1:
            tensor.backward = _refuse_backward  # type: ignore[method-assign]


def _refuse_backward(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(_DONE.format(what="loss.backward()"))


def refuse_empty_updates(optimizer: Optimizer) -> None:
    """Make `step()` of an optimizer raise while no parameter has a gradient, since the step has run the update."""
    if refuse_empty_update not in optimizer._optimizer_step_pre_hooks.values():
        optimizer.register_step_pre_hook(refuse_empty_update)


def refuse_empty_update(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Raise before `step()` of an optimizer if no parameter has a gradient.

    Raises:
        RuntimeError: no parameter has a gradient.
    """
    if all(parameter.grad is None for group in optimizer.param_groups for parameter in group["params"]):
        raise RuntimeError(_DONE.format(what="optimizer.step(), and clip_grad_norm_ before it"))


def warn_of_padded_norms(model: nn.Module, names: Iterable[str]) -> None:
    """Warn of torch's batch norms in a step of graphs, since their means count padding rows.

    Args:
        model: The captured model, in the mode of the step.
        names: The names of its arguments.
    """
    ours = {id(one._modules.get("module")) for one in model.modules() if type(one).__module__ == "popgeo.nn.norm"}
    norms = [(name, one) for name, one in model.named_modules() if isinstance(one, _BatchNorm) and one.training]
    others = [(name, one) for name, one in norms if not type(one).__module__.startswith("popgeo.")]
    found = [name for name, one in others if id(one) not in ours]
    if found and not _OF_GRAPHS.isdisjoint(name.rpartition(".")[2] for name in names):
        warnings.warn(
            f"{', '.join(found)} of the model takes means over all rows of a batch, padding included. Use "
            "popgeo.nn.BatchNorm with nodes_mask=, or popgeo.nn.convert_norms(model); "
            "popgeo.testing.check_padding_invariance tells whether padding matters.",
            stacklevel=2,
        )


def check_masks_of_loss(step: CapturedStep, arguments: Arguments, num_steps: int) -> None:
    """Check in the graph of a training step that the loss leaves out padding and sampled neighbors.

    Args:
        step: The captured step.
        arguments: The arguments of a call, with the tensors of one micro-batch.
        num_steps: Micro-batches of a call.

    Raises:
        ValueError: the batch has seeds, and the loss reads `train_mask` or a similar mask instead of `seeds_mask`.

    Warns:
        UserWarning: the batch has masks, and the loss reads labels of all rows without a mask.
    """
    read = _read_by_loss(step)
    for batch in arguments.graph_data:
        if hasattr(type(batch), "refuse_names"):
            batch.refuse_names({path.rpartition(".")[2] for path in read}, ())
    if _A_MASK in read or any("weight" in name for name in read):  # weights may be 0 for padding
        return
    rows = _padded_rows(arguments, num_steps)
    for (path, _), tensor in zip(leaves(arguments.structure), arguments.tensors, strict=True):
        name, mask = path.rpartition(".")[2], rows.get(len(tensor) if tensor.dim() else -1)
        is_label = name == "y" or "label" in name or "target" in name
        if mask is None or path not in read or name in _NO_LABELS or (mask != "graphs_mask" and not is_label):
            continue
        if tensor.dtype in _WHOLE and bool((tensor[-1:] < 0).all()):
            continue  # torch's losses ignore a negative class
        warnings.warn(
            f"The loss reads all rows of {path}, padding included, and no mask. Use a loss of popgeo.nn with {mask}, "
            f"such as popgeo.nn.mse_loss(out, y, {mask}); or fill labels of padding with a class that torch ignores, "
            "as FixedSizeOptions(..., graph_pad_value=-100) does for graphs.",
            stacklevel=2,
        )


def _padded_rows(arguments: Arguments, num_steps: int) -> dict[int, str]:
    """Return the name of the mask for each number of rows that includes padding."""
    whole = [*arguments.graph_data, *([] if arguments.batch is None else [arguments.batch])]
    masks = [(name, store[name]) for batch in whole for store in batch.stores for name in _MASKS if name in store]
    found = {len(mask) // num_steps: name for name, mask in masks if bool(mask.any())}
    count = unflatten(arguments.structure, arguments.tensors).get("num_graphs")
    if isinstance(count, int) and largest_graph.noted(arguments.tensors) is not None:  # a loader made the batch
        found[count] = "graphs_mask"
    return found


def _read_by_loss(step: CapturedStep) -> set[str]:
    """Return the names of the arguments that the loss depends on row by row.

    `_A_MASK` is among them if an argument is boolean, or if a mask is computed from arguments alone. Weights count as
    an argument without a name, so a boolean that depends on weights is not a mask.
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

"""The capture of a model's step, followed by the passes over its graph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from tqdm import tqdm

from popgeo.capture.arguments import Arguments
from popgeo.capture.capture import capture
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import Input, OpGraph
from popgeo.capture.passes import simplified, use_row_indexing
from popgeo.capture.pytree import note_likeness
from popgeo.progress import is_seen


def capture_step(
    function: Callable[..., Any],
    arguments: Arguments,
    *,
    trained: Sequence[str] = (),
    unregistered: Mapping[str, Sequence[nn.Parameter]] | None = None,
    loss_scaling: float | None = 1.0,
    autocast: torch.dtype | None = None,
    show_progress: bool = False,
) -> CapturedStep:
    """Capture a function and run the passes over its graph.

    Args:
        function: Module or function of tensors.
        arguments: Arguments of the call.
        trained: Names of the parameters to differentiate the loss by. Default: none.
        unregistered: Parameters that the function must not use, from `unregistered_parameters`. Default: none.
        loss_scaling: Gradient of the loss to start from; None makes it an input, `state:loss_scale`. Default: 1.
        autocast: Type in which the forward pass computes where that is safe; None keeps torch's setting.
        show_progress: Show a bar, at a terminal or in a notebook, after one second. Default: False.

    Raises:
        DynamicShapeError: a shape or a decision depends on the data.
        ValueError: there is no loss, there are several, the function changes a tensor that is neither an argument nor
            state, or it uses an unregistered parameter.
    """
    with tqdm(desc="compiling", unit=" operations", delay=1, disable=not (show_progress and is_seen())) as bar:
        captured = capture(
            function, arguments, trained=trained, loss_scaling=loss_scaling, autocast=autocast, on_operation=bar.update
        )
    _refuse_unregistered(captured.graph, unregistered or {})
    graph, relied_on = optimize(captured.graph)
    result = note_likeness(captured.result, arguments.graph_data)
    return replace(captured, graph=graph, result=result, row_indices=relied_on)


def optimize(graph: OpGraph) -> tuple[OpGraph, frozenset[Input]]:
    """Return an equal graph with fewer operations, and the inputs that it uses as row numbers: none may be negative."""
    graph, relied_on = use_row_indexing(simplified(graph))
    return simplified(graph), relied_on


def trained_names(model: Callable[..., Any], optimizer: Optimizer | None) -> list[str]:
    """Return the names of the model's parameters that the optimizer holds.

    Raises:
        ValueError: there is an optimizer and it holds no parameter of the model, or the model is a function.
    """
    if optimizer is None:
        return []
    if not isinstance(model, nn.Module):
        raise ValueError(f"A function ({model!r}) has no parameters to train; pass the module that holds them.")
    held = {p for group in optimizer.param_groups for p in group["params"]}
    trained = [name for name, p in model.named_parameters() if p in held and p.requires_grad]
    if not trained:
        if any(p in held for p in model.parameters()):
            raise ValueError("No parameter in the optimizer requires a gradient; call requires_grad_() of one.")
        raise ValueError("The optimizer holds no parameter of the model; build it from model.parameters().")
    return trained


def _refuse_unregistered(graph: OpGraph, held: Mapping[str, Sequence[nn.Parameter]]) -> None:
    used = {constant.untyped_storage()._cdata for constant in graph.constants.values()}
    shapes = {place: [list(p.shape) for p in own if p.untyped_storage()._cdata in used] for place, own in held.items()}
    if found := [f"{', '.join(map(str, some))} in {place}" for place, some in shapes.items() if some]:
        raise ValueError(
            f"The optimizer holds parameters that the model uses and does not register: {'; '.join(found)}. "
            "The compiled step would not train them, and no state_dict() has them. Register them: nn.ModuleList or "
            "nn.ParameterList instead of a list or a tuple, nn.ModuleDict or nn.ParameterDict instead of a dictionary, "
            "an attribute of a module instead of a closure. Or leave them out of the optimizer, and they stay constant."
        )


def unregistered_parameters(model: Callable[..., Any], optimizer: Optimizer | None) -> dict[str, list[nn.Parameter]]:
    """Return the parameters that an optimizer holds and its model does not register, by the name of their group."""
    own = {*model.parameters()} if isinstance(model, nn.Module) else set()
    groups = enumerate([] if optimizer is None else optimizer.param_groups)
    held = {f"parameter group {number}": [p for p in group["params"] if p not in own] for number, group in groups}
    return {place: parameters for place, parameters in held.items() if parameters}

"""The report of a model of any size, from shapes alone: no weight is allocated and nothing runs."""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo.capture.arguments import Arguments
from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import Role
from popgeo.engine.call_options import constant_loss_scaling
from popgeo.engine.optimizer.update import Update
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Report
from popgeo.ipu.step_cost import assess


def estimate(
    model: Callable[..., Any],
    example: Sequence[Any],
    options: Options | None = None,
    optimizer: Optimizer | None = None,
) -> Report:
    """What a step of a model would cost on the machine, where model and optimizer may be too large for this computer.

    Only shapes and types of weights are read, so a model made on the meta device (`with torch.device("meta"):`) or
    under `FakeTensorMode` will do, and takes next to no memory. A step that does not fit is no error here: the report
    tells how much memory it needs.

    Args:
        model: A module, or a function of tensors; with an optimizer it returns its loss.
        example: The positional arguments of one micro-batch; tensors, or nests of them, on any device.
        options: The machine, replicas and accumulation; one Bow IPU by default.
        optimizer: Over parameters of the model, for the report of a training step; None for one run of the model.

    Returns:
        The report, without times of this computer.

    Raises:
        DynamicShapeError: a shape depends on data.
        ValueError: with an optimizer, there is no loss or several, or none of its parameters is one of the loss's.

    Example:
        >>> with torch.device("meta"):
        ...     model = nn.Linear(4096, 4096)  # 67 MB, were it allocated
        >>> report = estimate(model, [torch.empty(32, 4096, device="meta")])
        >>> f"{report.total.flops:,} FLOP, {report.state_bytes:,} bytes of weights"
        '1,073,872,896 FLOP, 67,125,248 bytes of weights'
    """
    chosen = options or Options()
    start = time.perf_counter()
    arguments = bind(model.forward if isinstance(model, nn.Module) else model, *example)
    trained = trained_names(model, optimizer)
    step = capture_step(
        model,
        arguments,
        trained=trained,
        loss_scaling=constant_loss_scaling(chosen),
        show_progress=chosen.show_progress,
    )
    update = None
    if optimizer is not None:
        assert isinstance(model, nn.Module)
        update = update_of(model, step, optimizer, chosen)
    assessment = assess(
        step,
        chosen.target,
        None if update is None else update.capture(),
        micro_batches=chosen.gradient_accumulation,
        replicas=chosen.replication_factor,
        matmul_proportion=chosen.proportion_of(0),
    )
    return Report(
        target=chosen.target,
        costs=assessment.costs,
        memory=assessment.memory,
        micro_batches=chosen.gradient_accumulation,
        replicas=chosen.replication_factor,
        captured_ops=step.captured_ops,
        state_bytes=_state_bytes(step, arguments, update),
        buffer_bytes=0,
        compile_seconds=time.perf_counter() - start,
    )


def trained_names(model: Callable[..., Any], optimizer: Optimizer | None) -> list[str]:
    """The parameters of the model that the optimizer holds.

    Raises:
        ValueError: there is an optimizer and it holds none of them, or the model is a function.
    """
    if optimizer is None:
        return []
    if not isinstance(model, nn.Module):
        raise ValueError(f"A function ({model!r}) has no parameters to train; pass the module that holds them.")
    held = {p for group in optimizer.param_groups for p in group["params"]}
    trained = [name for name, p in model.named_parameters() if p in held and p.requires_grad]
    if not trained:
        raise ValueError("The optimizer holds no parameter of the model; build it from model.parameters().")
    return trained


def update_of(model: nn.Module, step: CapturedStep, optimizer: Optimizer, options: Options) -> Update:
    """The optimizer's update over parameters that have shapes only."""
    shapes: dict[int, nn.Parameter] = {}
    for p in model.parameters():
        shapes[id(p)] = nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="meta"), requires_grad=p.requires_grad)
    groups = []
    for group in optimizer.param_groups:
        groups.append({**group, "params": [shapes[id(p)] for p in group["params"] if id(p) in shapes]})
    on_meta = copy.copy(optimizer)
    on_meta.param_groups, on_meta.state = groups, type(optimizer.state)(dict)
    parameters = {name: shapes[id(p)] for name, p in model.named_parameters() if name in step.trained}
    return Update(on_meta, parameters, options)


def _state_bytes(step: CapturedStep, arguments: Arguments, update: Update | None) -> int:
    """Bytes of weights and buffers and, in training, of gradients and of the optimizer's state."""
    graph = step.graph
    held = {v for given, v in graph.inputs.items() if given.role in (Role.PARAMETER, Role.BUFFER)}
    total = sum({graph.values[v].storage: graph.values[v].nbytes for v in held}.values())
    if update is not None:
        made = update.capture()
        total += sum(made.values[v].nbytes for given, v in made.inputs.items() if given.role is not Role.PARAMETER)
    return total

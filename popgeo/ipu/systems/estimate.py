"""The report of a model of any size, from shapes alone: no weight is allocated and nothing runs."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from popgeo.capture.capture import bind
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph, Role
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Report
from popgeo.ipu.step_cost import assess
from popgeo.ipu.systems.share import share_of


def estimate(
    model: Callable[..., Any],
    example: Sequence[Any],
    options: Options | None = None,
    optimizer: Optimizer | None = None,
) -> Report:
    """What a step of a model would cost on the machine, where model and optimizer may be too large for this computer.

    Only shapes and types of weights are read, so a model made on the meta device (`with torch.device("meta"):`) or
    under `FakeTensorMode` will do, and takes next to no memory. A step that does not fit is no error here: the report
    tells how much memory it needs. Where a model's weights lie in shards (`popgeo.nn.parallel`) and the target has
    several IPUs, these hold some shards each, and the report is that of one of them.

    Args:
        model: A module, or a function of tensors; with an optimizer it returns its loss.
        example: The positional arguments of one micro-batch; tensors, or nests of them, on any device.
        options: The machine, replicas and accumulation; one Bow IPU by default.
        optimizer: Over parameters of the model, for the report of a training step; None for one run of the model.

    Returns:
        The report, without times of this computer.

    Raises:
        DynamicShapeError: a shape depends on data.
        ValueError: with an optimizer, there is no loss or several, or none of its parameters is one of the loss's; or
            the options ask for stages, whose account is `pipeline`.

    Example:
        >>> import torch
        >>> with torch.device("meta"):
        ...     model = nn.Linear(4096, 4096)  # 67 MB, were it allocated
        >>> report = estimate(model, [torch.empty(32, 4096, device="meta")])
        >>> f"{report.total.flops:,} FLOP, {report.state_bytes:,} bytes of weights"
        '1,073,872,896 FLOP, 67,125,248 bytes of weights'
    """
    chosen = options or Options()
    if chosen.stages is not None:
        raise ValueError(
            f"Options.stages is {chosen.stages!r}, but ipu.estimate is the report of a step on one IPU. Ask "
            "ipu.pipeline with the same arguments, or leave the stages out."
        )
    start = time.perf_counter()
    arguments = bind(model.forward if isinstance(model, nn.Module) else model, *example)
    share = share_of(model, arguments, chosen, optimizer)
    step, update = share.step, share.update
    made = None if update is None else update.capture()
    part = None
    if update is not None and chosen.shard_optimizer_state and chosen.replication_factor > 1:
        part = update.capture(chosen.replication_factor)
    assessment = assess(
        step,
        share.target,
        made,
        part_of_update=part,
        micro_batches=chosen.gradient_accumulation,
        replicas=chosen.replication_factor,
        matmul_proportion=chosen.proportion_of(0),
        shards=share.shards,
    )
    return Report(
        target=share.target,
        costs=assessment.costs,
        memory=assessment.memory,
        micro_batches=chosen.gradient_accumulation,
        replicas=chosen.replication_factor,
        shards=share.shards,
        captured_ops=step.captured_ops,
        state_bytes=_state_bytes(step, made, part),
        buffer_bytes=0,
        compile_seconds=time.perf_counter() - start,
    )


def _state_bytes(step: CapturedStep, update: OpGraph | None, part: OpGraph | None) -> int:
    """Bytes of weights and buffers and, in training, of gradients and of the optimizer's state that a replica keeps."""
    graph = step.graph
    held = {v for given, v in graph.inputs.items() if given.role in (Role.PARAMETER, Role.BUFFER)}
    total = sum({graph.values[v].storage: graph.values[v].nbytes for v in held}.values())
    for made, role in ((update, Role.GRADIENT), (part or update, Role.STATE)):
        if made is not None:
            total += sum(made.values[v].nbytes for v in made.inputs_of(role).values())
    return total

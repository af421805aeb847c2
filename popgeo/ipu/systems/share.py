"""What one IPU runs of a model that several share: the step and the update of the shards that it holds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo.capture.arguments import Arguments
from popgeo.capture.capture_step import capture_step, trained_names
from popgeo.capture.captured_step import CapturedStep
from popgeo.engine.optimizer.update import Update
from popgeo.engine.shards import num_shards, only_first
from popgeo.engine.step_recipe import require_optimizer
from popgeo.filter_choice import filters_at_each_edge
from popgeo.ipu.cost.shared_statistics import with_shared_statistics
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Report
from popgeo.ipu.step_cost import assess
from popgeo.ipu.target import IpuTarget


@dataclass(frozen=True, kw_only=True)
class Share:
    """One IPU's share of a step, or that of the IPUs that hold a shard together.

    Attributes:
        step: Its program of one micro-batch.
        update: Its update, over parameters that have shapes only; None if nothing is trained.
        target: The machine that runs it.
        shards: How many such machines a replica is.
    """

    step: CapturedStep
    update: Update | None
    target: IpuTarget
    shards: int

    def report(self, options: Options, sharded: frozenset[str] = frozenset()) -> Report:
        """The report of a step, without facts of this computer; nothing runs.

        Args:
            options: Micro-batches and replicas.
            sharded: Names of the gradients that replicas do not add up, since each has a part of its own.
        """
        part = None
        if self.update is not None and options.shard_optimizer_state and options.replication_factor > 1:
            part = self.update.capture(options.replication_factor)
        needs = assess(
            self.step,
            self.target,
            None if self.update is None else self.update.capture(),
            part_of_update=part,
            micro_batches=options.gradient_accumulation,
            replicas=options.replication_factor,
            sharded=sharded,
            shards=self.shards,
            matmul_proportion=options.proportion_of(0),
        )
        return Report(
            target=self.target,
            costs=needs.costs,
            memory=needs.memory,
            micro_batches=options.gradient_accumulation,
            replicas=options.replication_factor,
            shards=self.shards,
            captured_ops=self.step.captured_ops,
            state_bytes=needs.state_bytes,
            buffer_bytes=0,
            compile_seconds=0.0,
        )


def is_shared(model: object, target: IpuTarget) -> bool:
    """Whether a model's shards lie on several IPUs.

    Raises:
        ValueError: it has that many shards that they cannot be shared evenly.
    """
    return target.of_shards(num_shards(model))[1] > 1


def share_of(
    model: Callable[..., Any], arguments: Arguments, options: Options, optimizer: Optimizer | None = None
) -> Share:
    """The share of one IPU in a model's step; of a model without shards, the whole step.

    Args:
        model: A module whose weights may lie in shards, or a function.
        arguments: Those of one micro-batch.
        options: The machine, and what becomes of gradients.
        optimizer: Over parameters of the model; None if nothing is trained.

    Raises:
        ValueError: a norm that is trained cannot share its statistics among the replicas as it asks for.
    """
    if optimizer is not None:
        require_optimizer(optimizer)
    target, shards, num_local = options.target.of_shards(num_shards(model))
    with only_first(model, num_local), filters_at_each_edge():  # as published programs make them
        trained = trained_names(model, optimizer)
        scale, is_shown = options.constant_loss_scaling, options.show_progress
        step = capture_step(model, arguments, trained=trained, loss_scaling=scale, show_progress=is_shown)
        step = with_shared_statistics(step, model, options.replication_factor if optimizer else 1)
        update = update_of(model, step, optimizer, options) if optimizer and isinstance(model, nn.Module) else None
    return Share(step=step, update=update, target=target, shards=shards)


def update_of(model: nn.Module, step: CapturedStep, optimizer: Optimizer, options: Options) -> Update:
    """The optimizer's update over parameters that have shapes only."""
    shapes: dict[int, nn.Parameter] = {}
    for p in model.parameters():
        shapes[id(p)] = nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="meta"), requires_grad=p.requires_grad)
    groups = []
    for group in optimizer.param_groups:
        groups.append({**group, "params": [shapes[id(p)] for p in group["params"] if id(p) in shapes]})
    on_meta = object.__new__(type(optimizer))
    vars(on_meta).update(vars(optimizer))  # torch's own way to copy leaves out what a subclass has next to its groups
    on_meta.param_groups, on_meta.state = groups, type(optimizer.state)(dict)
    parameters = {name: shapes[id(p)] for name, p in model.named_parameters() if name in step.trained}
    return Update(on_meta, parameters, options)

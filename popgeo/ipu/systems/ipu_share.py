"""The share of one IPU in a model with shards on several IPUs: the step and the update of its shards."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo.capture.arguments import Arguments
from popgeo.capture.capture_step import capture_step, trained_names, unregistered_parameters
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import Role
from popgeo.capture.passes import fold_constants
from popgeo.engine.optimizer.update import Update
from popgeo.engine.shards import num_shards, only_first
from popgeo.engine.step_recipe import plain_optimizer
from popgeo.filter_choice import filters_at_each_edge
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.shared_statistics import with_shared_statistics
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Report
from popgeo.ipu.step_cost import accumulation, gradients_of, host_transfer, over_replicas
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.measure_memory import memory


@dataclass(frozen=True, kw_only=True)
class IpuShare:
    """The share of one IPU, or of the IPUs that hold a shard together, in a step.

    Attributes:
        step: Program of one micro-batch.
        update: Update over parameters that have shapes but no data; None without training.
        target: Machine that runs it.
        shards: Number of such machines in a replica.
    """

    step: CapturedStep
    update: Update | None
    target: IpuTarget
    shards: int

    def report(self, options: Options, sharded: frozenset[str] = frozenset()) -> Report:
        """Return the report of a step, without facts of this computer; nothing runs.

        Args:
            options: Number of micro-batches and replicas.
            sharded: Names of gradients that replicas do not sum, because each replica has its own part.
        """
        target, micro_batches, replicas = self.target, options.gradient_accumulation, options.replication_factor
        update = None if self.update is None else self.update.capture()
        # With a sharded state, each replica receives its part of the gradients and sends its part of the weights.
        in_parts = options.shard_optimizer_state and replicas > 1
        runs = self.update.capture(replicas) if self.update is not None and in_parts else update
        graph = fold_constants(self.step.expanded.graph)
        into = list(graph.inputs_of(Role.ARGUMENT).values())
        out = [v for v in graph.outputs[: self.step.num_results] if v is not None]  # gradients stay on the machine
        micro_batch = cost(graph, target, matmul_proportion=options.proportion_of(0))
        costs = [*host_transfer(graph, into, "receive inputs", target), *micro_batch]
        costs += host_transfer(graph, out, "send results", target)
        updating = cost(runs, target) if runs is not None else ()
        if update is not None and micro_batches > 1:
            costs += cost(accumulation(update), target)
        costs = [replace(one, count=micro_batches) for one in costs]
        shared = {} if update is None else {k: v for k, v in gradients_of(update).items() if k.name not in sharded}
        if shared and replicas > 1:
            kinds = ("reduce-scatter", "all-gather") if in_parts else ("all-reduce",)
            costs += [over_replicas(kind, shared, replicas, self.shards, target) for kind in kinds]
        held = {v for given, v in graph.inputs.items() if given.role in (Role.PARAMETER, Role.BUFFER)}
        state = sum({graph.values[v].storage: graph.values[v].nbytes for v in held}.values())
        for made, role in ((update, Role.GRADIENT), (runs, Role.STATE)):
            if made is not None:
                state += sum(made.values[v].nbytes for v in made.inputs_of(role).values())
        use = memory(
            graph,
            micro_batch,
            target,
            update=runs,
            update_costs=updating,
            num_results=self.step.num_results,
            accumulates=micro_batches * replicas > 1,
            gradient_parts=replicas if in_parts else 1,
        )
        return Report(
            target=target,
            costs=(*costs, *updating),
            memory=use,
            micro_batches=micro_batches,
            replicas=replicas,
            shards=self.shards,
            captured_ops=self.step.captured_ops,
            state_bytes=state,
        )


def is_shared(model: object, target: IpuTarget) -> bool:
    """Check whether a model's shards are on several IPUs.

    Raises:
        ValueError: the shards cannot be divided evenly over the IPUs.
    """
    return target.of_shards(num_shards(model))[1] > 1


def share_of(
    model: Callable[..., Any], arguments: Arguments, options: Options, optimizer: Optimizer | None = None
) -> IpuShare:
    """Return the share of one IPU in a model's step: the whole step if the model has no shards.

    Args:
        model: Function, or module with or without sharded weights.
        arguments: Arguments of one micro-batch.
        options: Machine, and the treatment of gradients.
        optimizer: Optimizer of parameters of the model; None without training.

    Raises:
        ValueError: a trained norm cannot share its statistics among the replicas.
    """
    if optimizer is not None:
        optimizer = plain_optimizer(optimizer)
    target, shards, num_local = options.target.of_shards(num_shards(model))
    with only_first(model, num_local), filters_at_each_edge():  # published programs compute filters at each edge
        trained = trained_names(model, optimizer)
        step = capture_step(
            model,
            arguments,
            trained=trained,
            unregistered=unregistered_parameters(model, optimizer),
            loss_scaling=options.constant_loss_scaling,
            show_progress=options.show_progress,
        )
        step = with_shared_statistics(step, model, options.replication_factor if optimizer else 1)
        update = update_of(model, step, optimizer, options) if optimizer and isinstance(model, nn.Module) else None
    return IpuShare(step=step, update=update, target=target, shards=shards)


def update_of(model: nn.Module, step: CapturedStep, optimizer: Optimizer, options: Options) -> Update:
    """Return the optimizer's update over parameters that have shapes but no data."""
    shapes: dict[int, nn.Parameter] = {}
    for p in model.parameters():
        shapes[id(p)] = nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="meta"), requires_grad=p.requires_grad)
    on_meta: Optimizer = object.__new__(type(optimizer))
    # Share the other attributes of a subclass; `without_parameters` would copy them, which may fail.
    vars(on_meta).update(vars(optimizer))
    on_meta.param_groups, on_meta.state = [], defaultdict(dict)
    for group in optimizer.param_groups:
        params = [shapes[id(p)] for p in group["params"] if id(p) in shapes]
        on_meta.param_groups.append({**group, "params": params})
    parameters = {name: shapes[id(p)] for name, p in model.named_parameters() if name in step.trained}
    return Update(on_meta, parameters, options)

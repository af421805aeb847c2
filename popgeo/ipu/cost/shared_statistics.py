"""Adds the exchange of statistics between replicas to a step, for norms over several replicas."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.expand import GraphWriter
from popgeo.capture.op_graph import Op, overload, substitute


def with_shared_statistics(step: CapturedStep, model: object, replicas: int) -> CapturedStep:
    """Return a training step that includes the exchange of `SyncBatchNorm` between replicas; it serves for plans only.

    The replicas of a group sum two numbers per channel over links in the forward pass and two in the backward pass, as
    Graphcore's library does (`popnn::bn`, distributed batch norm). The layer's `process_group` is the size of a group
    of neighboring replicas, such as 2, or None for all replicas.

    Args:
        step: The step of one replica.
        model: The model of the step.
        replicas: Number of replicas.

    Raises:
        ValueError: the replicas cannot be divided into such groups, or a layer has no weight.

    Example:
        >>> from popgeo.ipu import Options, estimate
        >>> class Squared(nn.Sequential):
        ...     def forward(self, x):
        ...         return super().forward(x).square().mean()
        >>> model = Squared(nn.Linear(8, 64), nn.SyncBatchNorm(64, process_group=2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> report = estimate(model, [torch.ones(32, 8)], Options(replication_factor=8), optimizer)
        >>> sum("all_reduce" in cost.target for cost in report.costs)  # of the gradients, too
        3
    """
    layers = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
    synced = {name: one for name, one in layers.items() if isinstance(one, nn.SyncBatchNorm) and one.training}
    groups = {name: _group(name, one, replicas) for name, one in synced.items()}
    if replicas == 1 or not groups:
        return step
    writer = GraphWriter(step.graph)
    for op in step.graph.ops:
        members = groups.get(op.module, 1) if "batch_norm" in op.target else 1
        if members == 1:
            writer.add(op)
        else:
            given = list(dict.fromkeys(op.reads()))
            writer.put(op, _shared(op, given, members), given, (op.target, op.module, op.phase))
    return replace(step, graph=writer.graph())


def _group(name: str, layer: nn.SyncBatchNorm, replicas: int) -> int:
    """Return the number of replicas that share the statistics of a layer."""
    size = replicas if layer.process_group is None else layer.process_group
    if not isinstance(size, int) or isinstance(size, bool) or size < 1 or replicas % size:
        raise ValueError(
            f"{name} has process_group={size!r}; in a plan it is the number of neighboring replicas that share their "
            f"statistics. Give a divisor of replication_factor={replicas}, or None for all."
        )
    if size > 1 and not all(isinstance(one, nn.Parameter) and one.requires_grad for one in (layer.weight, layer.bias)):
        raise ValueError(f"{name} has no trained weight, and a plan needs it; use affine=True.")
    return size


def _shared(op: Op, given: Sequence[int], members: int) -> Callable[..., Any]:
    """Return an operation that sums its statistics, such as mean and deviation, over the members of a group."""

    def norm(*tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the operation and sum its statistics over the members."""
        tensor = dict(zip(given, tensors, strict=True)).__getitem__
        made, *sums = overload(op.target)(*substitute(op.args, tensor), **substitute(op.kwargs, tensor))
        total = torch.ops.popgeo.all_reduce(torch.stack(sums[:2]).view(1, -1), members, 1)
        return made, *total.view(2, -1).unbind(0), *sums[2:]

    return norm

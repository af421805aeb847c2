"""The cost of stages on their IPUs: memory shares, serialized layers, waiting times and the update.

The update contains the sums over replicas, the optimizer, and transfers of its state.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from popgeo.capture.op_graph import Op, OpGraph, Role
from popgeo.capture.operations import name_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.links import message_seconds, replica_ring, ring_seconds, streaming_rate
from popgeo.ipu.cost.matmul import left_and_right, plan_matmul, sizes_of, width_of
from popgeo.ipu.cost.operands import width
from popgeo.ipu.cost.plan import OpCost, Plan, Superstep
from popgeo.ipu.cost.supersteps import repeated
from popgeo.ipu.options import Options
from popgeo.ipu.report.stage_cost import StageCost
from popgeo.ipu.stage_choices import Schedule
from popgeo.ipu.step_cost import total
from popgeo.ipu.systems.stage_cut import StageCut


def placed_costs(
    graph: OpGraph,
    costs_of: Callable[[int], Sequence[OpCost]],
    cut: StageCut,
    options: Options,
    serialize: Mapping[str, tuple[int, int]],
) -> list[OpCost]:
    """Return the costs of operations on their IPUs, with the IPU's memory share and serialized layers.

    Args:
        graph: The step of one micro-batch.
        costs_of: Function that returns the costs of all operations on an IPU.
        cut: Stage of each operation.
        options: The machine.
        serialize: Number of outputs and of parts of each serialized layer.
    """
    ipu_of = [cut.ipus[stage] for stage in cut.stage_of]
    costs = {ipu: costs_of(ipu) for ipu in set(ipu_of)}
    chosen = [costs[ipu][index] for index, ipu in enumerate(ipu_of)]
    for index, op in enumerate(graph.ops):
        if op.module in serialize:
            machine = Machine(target=options.target, matmul_proportion=options.proportion_of(ipu_of[index]))
            plan = serialized(graph, op, machine, *serialize[op.module])
            if plan is not None:
                chosen[index] = replace(chosen[index], plan=plan)
    return chosen


def outputs_of(model: nn.Module, serialize: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the number of outputs and of parts of each serialized layer.

    Raises:
        ValueError: a name is not a linear layer, or a layer has fewer outputs than parts.
    """
    layers = dict(model.named_modules())
    found = {}
    for name, parts in serialize.items():
        weight = getattr(layers.get(name), "weight", None)
        if weight is None or weight.dim() != 2:
            raise ValueError(f"serialize names {name!r}, which is not a linear layer of the model.")
        if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= weight.shape[0]:
            raise ValueError(f"serialize has {parts!r} parts for {name!r}; it takes 1 to {weight.shape[0]}.")
        found[name] = (weight.shape[0], parts)
    return found


@dataclass(frozen=True, kw_only=True)
class UpdateCost:
    """The cost of one update of all weights.

    Attributes:
        graph: Program of the update.
        costs: Costs of its operations.
        adding: Costs of adding the gradients of one micro-batch to the sums.
    """

    graph: OpGraph
    costs: tuple[OpCost, ...]
    adding: tuple[OpCost, ...]


def with_waits(
    stages: Sequence[StageCost],
    update: UpdateCost | None,
    options: Options,
    schedule: Schedule,
    micro_batches: int,
    *,
    overlap_host: bool = False,
) -> list[StageCost]:
    """Return stages with the further work of their passes: adding gradients, storing activations, streaming.

    Args:
        stages: Stages of the cut.
        update: Cost of one update; None without training.
        options: The machine and the replicas.
        schedule: Schedule. In sequential phases, weights come from streaming memory.
        micro_batches: Micro-batches between two updates. With one, nothing is added or stored.
        overlap_host: Whether the host's transfers run while stages compute.
    """
    target, several = options.target, micro_batches > 1
    # Each stage adds the gradients of its share of the weights.
    cycles, weights = 0.0 if update is None else total(update.adding).cycles, sum(s.weight_bytes for s in stages)
    adding = [cycles * s.weight_bytes / weights if several and update is not None else 0.0 for s in stages]
    copying = 1 / (target.num_tiles * target.copy_bytes) if update is not None and several and len(stages) > 1 else 0.0
    if schedule is Schedule.PHASED:
        rate = streaming_rate(options.replication_factor, target) / target.clock
        stages = [_with_streaming(stage, rate, update is not None) for stage in stages]
    return [
        replace(stage, accumulate=own, stash_copy=stage.stash_bytes * copying, host_overlaps=overlap_host)
        for stage, own in zip(stages, adding, strict=True)
    ]


def _with_streaming(stage: StageCost, rate: float, trains: bool) -> StageCost:
    """Return a phase with its transfers: weights before each pass, and kept activations in both directions."""
    into = stage.weight_bytes + (stage.stash_bytes if trains else 0)
    gradients = 2 * stage.weight_bytes if trains else 0  # read, added to, written
    return replace(
        stage, streaming_forward=into / rate, streaming_backward=(into + gradients) / rate if trains else 0.0
    )


def serialized(graph: OpGraph, op: Op, machine: Machine, outputs: int, parts: int) -> Plan | None:
    """Return the plan of a layer's product that computes a part of the layer's outputs at a time.

    It follows PopTorch's `serializedMatMul` over output channels: the forward product computes its columns in parts,
    the product of the weights' gradient its rows; the inputs' gradient is a sum of the products of all parts.

    Args:
        graph: Program of the operation.
        op: The operation.
        machine: Machine to plan for.
        outputs: Outputs of the layer; they identify the dimension to cut.
        parts: Number of parts.

    Returns:
        The plan; None if the operation is not a dense product over the layer's outputs.
    """
    if name_of(op.target) not in ("aten.mm", "aten.matmul", "aten.addmm", "aten.linear"):
        return None
    rows, contraction, columns, batch = sizes_of(graph, op)
    sizes = [rows * batch, contraction, columns]
    if outputs not in sizes:
        return None
    flops, cut = 2 * math.prod(sizes), sizes.index(outputs)
    sizes[cut] = -(-outputs // parts)
    once = plan_matmul(*sizes, width_of(graph, op), machine)
    steps = [_repeat_superstep(step, parts) for step in once.supersteps]
    if cut == 1:
        adding = plan_elementwise("add", sizes[0] * sizes[2], width(left_and_right(graph, op)[0]), machine)
        steps += [_repeat_superstep(step, parts - 1) for step in adding.supersteps]
    split = {**once.split, "serial": parts * once.split["serial"]}
    return replace(once, supersteps=tuple(steps), split=split, flops=flops)


def _repeat_superstep(step: Superstep, times: int) -> Superstep:
    """Repeat a superstep, with separate exchange code for each repetition."""
    return replace(repeated(step, times), fragments=times * step.fragments)


def update_cycles(
    update: UpdateCost | None,
    stages: Sequence[StageCost],
    num_ipus: int,
    options: Options,
    *,
    off_chip: bool = False,
    all_off_chip: bool = False,
) -> tuple[dict[str, tuple[float, ...]], tuple[int, ...]]:
    """Return cycles of the parts of an update, and bytes of gradients and optimizer state, for each IPU.

    Args:
        update: Cost of one update; None without training.
        stages: Stages of the pipeline. Each IPU's share of the update is its share of the weights.
        num_ipus: IPUs of one replica.
        options: Machine and replicas; whether each replica holds a part of the state and all gather the weights.
        off_chip: Whether the optimizer's state is in streaming memory, read before the update and written after.
        all_off_chip: Whether weights and gradients are also in streaming memory.
    """
    if update is None:
        return {"optimizer": (0.0,) * num_ipus}, (0,) * num_ipus
    replicas, target = options.replication_factor, options.target
    held = [sum(s.weight_bytes - s.held_before for s in stages if s.ipu == ipu) for ipu in range(num_ipus)]
    weights, gradients, state = (
        sum(update.graph.values[v].nbytes for v in update.graph.inputs_of(role).values())
        for role in (Role.PARAMETER, Role.GRADIENT, Role.STATE)
    )
    owners = replicas if options.shard_optimizer_state else 1
    shares = [own / weights for own in held]
    cycles = total(update.costs).cycles / owners
    state_of = [share * state / owners for share in shares]
    exchanged = [0.0] * num_ipus
    for stage in stages:
        if stage.shared_bytes and num_ipus > 1:  # gradients are received, and updated weights sent back
            others = [other.ipu for other in stages if other.ipu != stage.ipu]
            slowest = max(message_seconds(stage.shared_bytes, stage.ipu, other, target) for other in others)
            exchanged[stage.ipu] += 2 * slowest * target.clock
    # The traffic is the same with sharding: one round for partial sums, one for parts of gradients or of weights.
    rings = [ring_seconds(own, replica_ring(i, num_ipus, replicas), target) for i, own in enumerate(held)]
    rate = streaming_rate(num_ipus * replicas, target)
    parts = {
        "optimizer": tuple(share * cycles for share in shares),
        "shared weights": tuple(exchanged),
        "sum over replicas": tuple(seconds * target.clock for seconds in rings),
    }
    of_gradients = [share * gradients for share in shares]
    if off_chip or all_off_chip:
        moved = [2 * own for own in state_of]  # read and written
        if all_off_chip:
            moved = [own + 2 * weight + grad for own, weight, grad in zip(moved, held, of_gradients, strict=True)]
        parts["streaming memory"] = tuple(nbytes / rate * target.clock for nbytes in moved)
        state_of = [0.0] * num_ipus
    on_chip = [0.0 if all_off_chip else own + grad for own, grad in zip(state_of, of_gradients, strict=True)]
    return parts, tuple(round(nbytes) for nbytes in on_chip)

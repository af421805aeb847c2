"""What stages cost once they have their IPU: its share of memory, layers in parts, and all that a pass waits for."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import nn

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.capture.operations import name_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.links import streaming_rate
from popgeo.ipu.cost.matmul import left_and_right, plan_matmul, sizes_of, width_of
from popgeo.ipu.cost.operands import width
from popgeo.ipu.cost.plan import OpCost, Plan, Superstep
from popgeo.ipu.cost.supersteps import repeated
from popgeo.ipu.options import Options
from popgeo.ipu.stage_choices import Schedule
from popgeo.ipu.systems.stage_cost import StageCost
from popgeo.ipu.systems.stage_cut import StageCut
from popgeo.ipu.systems.stage_update import UpdateCost, accumulation_cycles


def placed_costs(
    graph: OpGraph,
    costs_of: Callable[[int], Sequence[OpCost]],
    cut: StageCut,
    options: Options,
    serialize: Mapping[str, tuple[int, int]],
) -> list[OpCost]:
    """Costs where each operation has found its IPU: its share of memory for products, and layers in parts.

    Args:
        graph: The step of one micro-batch.
        costs_of: The costs of all operations on an IPU.
        cut: The stage of each operation.
        options: The machine.
        serialize: Outputs and parts of each layer that is computed in parts.
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
    """Outputs and parts of each layer that is computed in parts.

    Raises:
        ValueError: a name is no linear layer, or it has fewer outputs than parts.
    """
    layers = dict(model.named_modules())
    found = {}
    for name, parts in serialize.items():
        weight = getattr(layers.get(name), "weight", None)
        if weight is None or weight.dim() != 2:
            raise ValueError(f"serialize names {name!r}, which is no linear layer of the model.")
        if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= weight.shape[0]:
            raise ValueError(f"serialize has {parts!r} parts for {name!r}; it takes 1 to {weight.shape[0]}.")
        found[name] = (weight.shape[0], parts)
    return found


def with_waits(
    stages: Sequence[StageCost],
    update: UpdateCost | None,
    options: Options,
    schedule: Schedule,
    micro_batches: int,
    *,
    overlap_host: bool = False,
) -> list[StageCost]:
    """Stages with what their passes do besides computing: adding up gradients, putting activations aside, streaming.

    Args:
        stages: As cut.
        update: One update; None where nothing is trained.
        options: The machine and the replicas.
        schedule: In sequential phases, weights come from streaming memory.
        micro_batches: Between two updates; of one alone, nothing is added up or put aside.
        overlap_host: Whether the host's transfers take place while stages compute.
    """
    target, several = options.target, micro_batches > 1
    adding = accumulation_cycles(update, stages) if update is not None and several else [0.0] * len(stages)
    copying = 1 / (target.num_tiles * target.copy_bytes) if update is not None and several and len(stages) > 1 else 0.0
    streamed = list(stages)
    if schedule is Schedule.PHASED:
        rate = streaming_rate(options.replication_factor, target) / target.clock
        streamed = [_with_streaming(stage, rate, update is not None) for stage in stages]
    return [
        replace(stage, accumulate=own, stash_copy=stage.stash_bytes * copying, host_overlaps=overlap_host)
        for stage, own in zip(streamed, adding, strict=True)
    ]


def _with_streaming(stage: StageCost, rate: float, trains: bool) -> StageCost:
    """A phase whose weights come from streaming memory before each pass, and what it keeps goes there and back."""
    into = stage.weight_bytes + (stage.stash_bytes if trains else 0)
    gradients = 2 * stage.weight_bytes if trains else 0  # read, added to, written
    return replace(
        stage,
        streaming_forward=into / rate,
        streaming_backward=(into + gradients) / rate if trains else 0.0,
    )


def serialized(graph: OpGraph, op: Op, machine: Machine, outputs: int, parts: int) -> Plan | None:
    """A product of a layer's forward or backward pass, computed for a part of the layer's outputs at a time.

    As PopTorch's `serializedMatMul` over output channels: the product of the forward pass makes its columns in parts,
    that of the weights' gradient its rows, and that of the inputs' gradient adds up a product of each part.

    Args:
        graph: The program that the operation is part of.
        op: The operation.
        machine: What to plan for.
        outputs: Of the layer, so that the dimension that is cut is known.
        parts: How many.

    Returns:
        The plan; None where the operation is no dense product over the layer's outputs.
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
    steps = [_again(step, parts) for step in once.supersteps]
    if cut == 1:
        adding = plan_elementwise("add", sizes[0] * sizes[2], width(left_and_right(graph, op)[0]), machine)
        steps += [_again(step, parts - 1) for step in adding.supersteps]
    split = {**once.split, "serial": parts * once.split["serial"]}
    return replace(once, supersteps=tuple(steps), split=split, flops=flops)


def _again(step: Superstep, times: int) -> Superstep:
    """A superstep that runs `times` times, as `repeated`, each time with exchange code of its own."""
    return replace(repeated(step, times), fragments=times * step.fragments)

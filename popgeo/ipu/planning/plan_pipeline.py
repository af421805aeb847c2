"""The door for pipelines: a model and where to cut it in, what it would cost over several IPUs out."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.op_graph import OpGraph, Role
from popgeo.capture.passes import fold_constants
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.plan import OpCost, Profile
from popgeo.ipu.options import Options
from popgeo.ipu.planning.cut import Block, blocks_of, cut, cut_at, cut_by_layers, cut_evenly
from popgeo.ipu.planning.pipeline import Pipeline
from popgeo.ipu.planning.schedule import Schedule, timeline
from popgeo.ipu.planning.share import trained_names, update_of
from popgeo.ipu.planning.stage import Stage, link_rate, stages_of


def pipeline(
    model: nn.Module,
    example: Sequence[Any],
    options: Options | None = None,
    optimizer: Optimizer | None = None,
    *,
    stages: int | Sequence[int] | Mapping[str, int],
    schedule: Schedule | str = Schedule.ONE_F_ONE_B,
    recompute: bool = False,
) -> Pipeline:
    """What a step of a model would cost over several IPUs, from shapes alone; nothing is allocated and nothing runs.

    Args:
        model: A module that returns its loss; its weights may be on the meta device.
        example: The positional arguments of one micro-batch.
        options: `gradient_accumulation` micro-batches go through the pipeline between two updates (in inference,
            `device_iterations`), `replication_factor` pipelines run side by side, each stage on one `target`.
        optimizer: Over parameters of the model; None for inference.
        stages: How many, cut so that they are even in cycles and memory; or the number of the model's alike layers on
            each IPU, as `[0, 3, 3]`; or which layers begin a stage on which IPU, as `{"layers.3": 1}`.
        schedule: In which order stages take micro-batches.
        recompute: Keep of each micro-batch only what a stage receives, and repeat its forward pass later.

    Raises:
        ValueError: the stages do not cover the model's layers, or there is no loss.

    Example:
        >>> import torch
        >>> layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        >>> plan = pipeline(layers, [torch.ones(16, 64)], Options(device_iterations=12), stages=4)
        >>> plan.num_ipus, [stage.layers for stage in plan.stages], plan.fits
        (4, ['0', '1', '2', '3'], True)
    """
    start = time.perf_counter()
    chosen = options or Options()
    trained = trained_names(model, optimizer)
    arguments = bind(model.forward, *example)
    step = capture_step(model, arguments, trained=trained, loss_scaling=chosen.loss_scaling)
    graph = fold_constants(step.graph)
    costs = cost(graph, chosen.target)
    blocks = blocks_of(graph)
    firsts, ipus = _firsts(graph, costs, blocks, stages)
    placed = cut(graph, blocks, firsts, ipus)
    parts = stages_of(graph, costs, placed, chosen.target, num_results=step.num_results, recompute=recompute)
    count = chosen.gradient_accumulation if optimizer is not None else chosen.device_iterations
    tasks = timeline(
        [part.receive_forward + part.forward for part in parts],
        [part.receive_backward + part.backward for part in parts] if optimizer is not None else [],
        ipus,
        count,
        Schedule(schedule),
    )
    update = update_of(model, step, optimizer, chosen).capture() if optimizer is not None else None
    cycles, extra = _updates(update, parts, placed.num_ipus, chosen)
    return Pipeline(
        target=chosen.target,
        schedule=Schedule(schedule),
        stages=tuple(parts),
        tasks=tuple(tasks),
        micro_batches=count,
        replicas=chosen.replication_factor,
        update=cycles,
        extra_bytes=extra,
        shared=_shared(graph, placed.stage_of, ipus),
        seconds_to_plan=time.perf_counter() - start,
    )


def _firsts(
    graph: OpGraph, costs: Sequence[OpCost], blocks: Sequence[Block], stages: int | Sequence[int] | Mapping[str, int]
) -> tuple[list[int], list[int]]:
    """The first block of each stage, and its IPU."""
    if isinstance(stages, Mapping):
        return cut_at(blocks, stages)
    if not isinstance(stages, int):
        firsts = cut_by_layers(blocks, stages)
        return firsts, list(range(len(firsts)))
    if isinstance(stages, bool) or stages < 1:
        raise ValueError(f"stages is {stages!r}; ask for at least one.")
    whole = cut(graph, blocks, list(range(len(blocks))), list(range(len(blocks))))
    cycles, held = [0.0] * len(blocks), [dict[int, int]() for _ in blocks]
    weights = {v for given, v in graph.inputs.items() if given.role is Role.PARAMETER}
    for index, (op, its) in enumerate(zip(graph.ops, costs, strict=True)):
        cycles[whole.stage_of[index]] += its.plan.cycles(Profile.CALIBRATED)
        held[whole.stage_of[index]] |= {v: graph.values[v].nbytes for v in op.reads() if v in weights}
    return cut_evenly(blocks, cycles, [sum(one.values()) for one in held], stages), list(range(stages))


def _updates(
    update: OpGraph | None, stages: Sequence[Stage], num_ipus: int, options: Options
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Cycles of the update, and bytes of gradients and optimizer state, on each IPU: its share of the weights."""
    if update is None:
        return (0.0,) * num_ipus, (0,) * num_ipus
    nbytes = [0] * num_ipus
    for stage in stages:
        nbytes[stage.ipu] += stage.weight_bytes
    weights = sum(update.values[v].nbytes for v in update.inputs_of(Role.PARAMETER).values())
    others = (Role.STATE, Role.GRADIENT)
    kept = sum(update.values[v].nbytes for given, v in update.inputs.items() if given.role in others)
    cycles = sum(one.plan.cycles(Profile.CALIBRATED) for one in cost(update, options.target))
    shares = [own / weights for own in nbytes]
    replicas, target = options.replication_factor, options.target
    reduce_cycles = [0.0] * num_ipus
    for stage in stages:
        if stage.shared_bytes:  # gradients come in, and the updated weights go back
            slowest = min(link_rate(stage.ipu, other.ipu, target) for other in stages if other.ipu != stage.ipu)
            reduce_cycles[stage.ipu] += 2 * (target.link_seconds + stage.shared_bytes / slowest) * target.clock
    if replicas > 1:  # a ring: twice round, a share of the gradients at a time
        rate = link_rate(0, num_ipus, target)  # the same stage of the next replica
        turns = 2 * (replicas - 1)
        rings = [turns * (target.link_seconds + own / replicas / rate) * target.clock for own in nbytes]
        reduce_cycles = [before + ring for before, ring in zip(reduce_cycles, rings, strict=True)]
    total = tuple(share * cycles + more for share, more in zip(shares, reduce_cycles, strict=True))
    return total, tuple(round(share * kept) for share in shares)


def _shared(graph: OpGraph, stage_of: Sequence[int], ipus: Sequence[int]) -> tuple[str, ...]:
    """Parameters that operations on several IPUs read."""
    names = {v: given.name for given, v in graph.inputs_of(Role.PARAMETER).items()}
    used: dict[int, set[int]] = {}
    for index, op in enumerate(graph.ops):
        if op.phase == "forward":
            for v in op.reads():
                if v in names:
                    used.setdefault(v, set()).add(ipus[stage_of[index]])
    return tuple(names[v] for v, where in used.items() if len(where) > 1)

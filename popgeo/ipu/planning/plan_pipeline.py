"""The door for pipelines: a model and where to cut it in, what it would cost over several IPUs out."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer

from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph, Role
from popgeo.capture.passes import fold_constants
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.plan import OpCost, Profile
from popgeo.ipu.options import Options
from popgeo.ipu.planning.cut import Block, Cut, blocks_of, cut, cut_at, cut_by_layers, cut_evenly
from popgeo.ipu.planning.cut_blocks import (
    BLOCKS,
    EACH_BLOCK,
    cut_at_each,
    cut_at_ipus,
    cut_at_stages,
    named_blocks,
)
from popgeo.ipu.planning.cut_blocks import Stage as NamedStage
from popgeo.ipu.planning.estimate import trained_names, update_of
from popgeo.ipu.planning.pipeline import Pipeline
from popgeo.ipu.planning.schedule import Schedule, timeline
from popgeo.ipu.planning.stage import Stage, link_rate, stages_of

Stages = int | str | Sequence[int] | Sequence[NamedStage] | Mapping[str, int]


def pipeline(
    model: nn.Module,
    example: Sequence[Any],
    options: Options | None = None,
    optimizer: Optimizer | None = None,
    *,
    stages: Stages,
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
            each IPU, as `[0, 3, 3]`; or which layers begin a stage on which IPU, as `{"layers.3": 1}`; or
            `"blocks"` or a list of `ipu.Stage` for the blocks that the model names with `Block` or `BeginBlock`.
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
    update = update_of(model, step, optimizer, chosen).capture() if optimizer is not None else None
    return plan_step(step, update, chosen, stages=stages, schedule=schedule, recompute=recompute, start=start)[0]


def plan_step(
    step: CapturedStep,
    update: OpGraph | None,
    chosen: Options,
    *,
    stages: Stages,
    schedule: Schedule | str = Schedule.ONE_F_ONE_B,
    recompute: bool = False,
    start: float | None = None,
) -> tuple[Pipeline, Cut]:
    """What a captured step would cost over several IPUs, and where it is cut: the plan of `pipeline`, and what runs.

    Args:
        step: The step of one micro-batch.
        update: The program of one update; None where nothing is trained.
        chosen: As for `pipeline`, and so are the others.
        stages: How many, or layers of each IPU, or what begins a stage.
        schedule: In which order stages take micro-batches.
        recompute: Whether forward passes are repeated.
        start: When the plan was asked for; now, if left out.

    Raises:
        ValueError: the stages do not cover the model's layers.
    """
    start = time.perf_counter() if start is None else start
    graph = fold_constants(step.graph)
    costs = cost(graph, chosen.target)
    blocks, firsts, ipus = _cut_of(graph, costs, stages)
    if Schedule(schedule) is Schedule.PHASED and not isinstance(stages, Mapping):
        ipus = [0] * len(ipus)
    placed = cut(graph, blocks, firsts, ipus)
    parts = stages_of(graph, costs, placed, chosen.target, num_results=step.num_results, recompute=recompute)
    count = chosen.gradient_accumulation if update is not None else chosen.device_iterations
    tasks = timeline(
        [part.receive_forward + part.forward for part in parts],
        [part.receive_backward + part.backward for part in parts] if update is not None else [],
        ipus,
        count,
        Schedule(schedule),
    )
    cycles, extra = _updates(update, parts, placed.num_ipus, chosen)
    planned = Pipeline(
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
    return planned, placed


def _cut_of(
    graph: OpGraph, costs: Sequence[OpCost], stages: Stages
) -> tuple[Sequence[Block], Sequence[int], Sequence[int]]:
    """What is not cut apart, which of these begin a stage, and its IPU."""
    parts = [] if isinstance(stages, int | str | Mapping) else [one for one in stages if isinstance(one, NamedStage)]
    if stages in (BLOCKS, EACH_BLOCK) or parts:
        marked = named_blocks(graph)
        marks, blocks = [mark for mark, _ in marked], [block for _, block in marked]
        if parts:
            return blocks, *cut_at_stages(marks, parts)
        return blocks, *(cut_at_ipus(marks) if stages == BLOCKS else cut_at_each(marks))
    assert not isinstance(stages, str)
    blocks = blocks_of(graph)
    return blocks, *_firsts(graph, costs, blocks, cast(int | Sequence[int] | Mapping[str, int], stages))


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
        if stage.shared_bytes and num_ipus > 1:  # gradients come in, and the updated weights go back
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

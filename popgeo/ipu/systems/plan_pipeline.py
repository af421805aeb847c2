"""The door for pipelines: a model and where to cut it in, what it would cost over several IPUs out."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph, Role
from popgeo.ipu.cost.plan import OpCost, Profile
from popgeo.ipu.options import Options
from popgeo.ipu.systems.arguments import require_arguments, require_stages, schedule_of
from popgeo.ipu.systems.captured_model import CapturedModel
from popgeo.ipu.systems.cut import Block, Cut, cut, cut_at, cut_by_layers, cut_evenly
from popgeo.ipu.systems.cut_blocks import (
    BLOCKS,
    EACH_BLOCK,
    cut_at_each,
    cut_at_ipus,
    cut_at_stages,
    named_blocks,
    several_ipus,
)
from popgeo.ipu.systems.cut_blocks import Stage as NamedStage
from popgeo.ipu.systems.cut_stages import stages_of
from popgeo.ipu.systems.pipeline import Pipeline
from popgeo.ipu.systems.pipeline_update import update_cycles
from popgeo.ipu.systems.repeated import recompute_of
from popgeo.ipu.systems.schedule import USUAL, Schedule, timeline
from popgeo.ipu.systems.stage_costs import outputs_of, placed_costs, with_waits
from popgeo.ipu.systems.turns import turns_of

Stages = int | str | Sequence[int] | Sequence[NamedStage] | Mapping[str, int]


def pipeline(
    model: nn.Module,
    example: Sequence[Any],
    options: Options | None = None,
    optimizer: Optimizer | None = None,
    *,
    stages: Stages | None = None,
    schedule: Schedule | str | None = None,
    recompute: bool | Sequence[str] | None = None,
    serialize: Mapping[str, int] | None = None,
    optimizer_off_chip: bool = False,
    overlap_host: bool = False,
) -> Pipeline:
    """What a step of a model would cost over several IPUs, from shapes alone; nothing is allocated and nothing runs.

    Args:
        model: A module that returns its loss; its weights may be on the meta device.
        example: The positional arguments of one micro-batch.
        options: `gradient_accumulation` micro-batches go through the pipeline between two updates (in inference,
            `device_iterations`), `replication_factor` pipelines run side by side, each stage on one `target`;
            `matmul_proportion` limits what dense products may take of a tile, with `shard_optimizer_state` each replica
            holds a part of the optimizer's state. `stages`, `schedule`, `recompute` hold where they are left out here.
        optimizer: Over parameters of the model; None for inference.
        stages: How many, cut so that they are even in cycles and memory; or the number of the model's alike layers on
            each IPU, as `[0, 3, 3]`; or which layers begin a stage on which IPU, as `{"layers.3": 1}`; or
            `"blocks"` or a list of `ipu.Stage` for the blocks that the model names with `Block` or `BeginBlock`.
        schedule: In which order stages take micro-batches; in lock-step as on the machine, if nothing says otherwise.
        recompute: Keep of each micro-batch only what a stage receives, and repeat its forward pass later. Names of
            layers keep the results of these too (PopTorch's `recomputationCheckpoint`), so that one layer at a time is
            repeated and there.
        serialize: Linear layers whose outputs are computed in so many parts, by name; PopTorch's `serializedMatMul`.
        optimizer_off_chip: The optimizer's state lies in streaming memory; PopTorch's `useOnChipStorage(False)`.
        overlap_host: Some tiles exchange with the host while the others compute (I/O tiles).

    Raises:
        ValueError: nothing says how many stages there are, they do not cover the model's layers, a layer of `serialize`
            does not exist, there is no loss, or the target has several IPUs, over which it spreads each operation.

    Example:
        >>> import torch
        >>> layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        >>> plan = pipeline(layers, [torch.ones(16, 64)], Options(device_iterations=12), stages=4)
        >>> plan.num_ipus, [stage.layers for stage in plan.stages], plan.fits
        (4, ['0', '1', '2', '3'], True)
    """
    start = time.perf_counter()
    require_arguments(model, example, options, serialize)
    chosen = options or Options()
    step = CapturedModel.of(model, example, chosen, optimizer)
    choices = _Choices(
        options=chosen,
        stages=_stages_asked_for(step.graph, chosen) if stages is None else stages,
        schedule=schedule_of(schedule or chosen.schedule or USUAL),
        recompute=chosen.recompute if recompute is None else recompute,
        serialize=outputs_of(model, serialize or {}),
        optimizer_off_chip=optimizer_off_chip,
        overlap_host=overlap_host,
    )
    return _planned(step, choices, start)[0]


def plan_step(
    step: CapturedStep,
    update: OpGraph | None,
    chosen: Options,
    *,
    stages: Stages,
    schedule: Schedule | str = USUAL,
    recompute: bool | Sequence[str] = False,
) -> tuple[Pipeline, Cut]:
    """What a captured step would cost over several IPUs, and where it is cut: the plan of `pipeline`, and what runs.

    Args:
        step: The step of one micro-batch.
        update: The program of one update; None where nothing is trained.
        chosen: As for `pipeline`, and so are the others.
        stages: How many, or layers of each IPU, or what begins a stage.
        schedule: In which order stages take micro-batches.
        recompute: Whether forward passes are repeated, or from which layers' results.

    Raises:
        ValueError: the stages do not cover the model's layers.
    """
    start = time.perf_counter()
    captured = CapturedModel.of_step(step, chosen.target, None if update is None else lambda _: update)
    choices = _Choices(options=chosen, stages=stages, schedule=Schedule(schedule), recompute=recompute)
    return _planned(captured, choices, start)


@dataclass(frozen=True, kw_only=True)
class _Choices:
    """What a plan of a captured model depends on besides; all but `serialize` as `pipeline` takes it."""

    options: Options
    stages: Stages
    schedule: Schedule
    recompute: bool | Sequence[str]
    serialize: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    optimizer_off_chip: bool = False
    overlap_host: bool = False


def _planned(step: CapturedModel, choices: _Choices, start: float) -> tuple[Pipeline, Cut]:
    """The plan of a captured model, and where it is cut."""
    chosen, order, graph = choices.options, choices.schedule, step.graph
    require_stages(choices.stages)
    if chosen.target.num_ipus > 1:
        raise ValueError(
            f"IpuTarget.num_ipus is {chosen.target.num_ipus}, over which a layer's operations or shards are spread, "
            "but each stage is on one IPU, with all shards of its layers. Leave num_ipus at 1 for stages, which say "
            "how many IPUs there are, or leave the stages out."
        )
    costs = step.costs(chosen.proportion_of(0))
    blocks, firsts, ipus = _cut_of(step, costs, choices.stages)
    if order is Schedule.PHASED and not isinstance(choices.stages, Mapping):
        ipus = [0] * len(ipus)
    placed = cut(graph, blocks, firsts, ipus)
    parts = stages_of(
        graph,
        placed_costs(step, placed, chosen, choices.serialize),
        placed,
        chosen.target,
        num_results=step.num_results,
        recompute=recompute_of(graph, choices.recompute),
        memories=step.memories,
    )
    count = chosen.gradient_accumulation if step.trains else chosen.device_iterations
    update = step.update(chosen)
    parts = with_waits(parts, update, chosen, order, count, overlap_host=choices.overlap_host)
    tasks = timeline(
        [part.forward_pass for part in parts],
        [part.backward_pass for part in parts] if step.trains else [],
        ipus,
        count,
        order,
        receive=([part.waits_forward for part in parts], [part.waits_backward for part in parts]),
    )
    updating, extra = update_cycles(
        update,
        parts,
        placed.num_ipus,
        chosen,
        off_chip=choices.optimizer_off_chip,
        all_off_chip=order is Schedule.PHASED,
        sharded=chosen.shard_optimizer_state,
    )
    ends = [*firsts[1:], len(blocks)]
    planned = Pipeline(
        target=chosen.target,
        schedule=order,
        stages=tuple(parts),
        tasks=tuple(tasks),
        micro_batches=count,
        replicas=chosen.replication_factor,
        turns=tuple(turns_of(tasks, len(parts), count)) if order is Schedule.LOCK_STEP else (),
        update=tuple(map(sum, zip(*updating.values(), strict=True))),
        update_parts=updating,
        host_seconds=chosen.target.host_call_seconds / (chosen.device_iterations if step.trains else 1),
        extra_bytes=extra,
        shared=_shared(graph, placed.stage_of, ipus),
        recompute=choices.recompute if isinstance(choices.recompute, bool) else tuple(choices.recompute),
        layers=tuple(tuple(block.name for block in blocks[i:j]) for i, j in zip(firsts, ends, strict=True)),
        again=partial(_again, step, choices),
        seconds_to_plan=time.perf_counter() - start,
    )
    return planned, placed


def _again(
    step: CapturedModel,
    choices: _Choices,
    *,
    micro_batches: int,
    replicas: int,
    device_iterations: int | None = None,
    shard_optimizer_state: bool | None = None,
    **others: Any,
) -> Pipeline:
    """The same captured model with other choices."""
    start = time.perf_counter()
    if "schedule" in others:
        others["schedule"] = schedule_of(others["schedule"])
    options = replace(choices.options, replication_factor=replicas)
    if shard_optimizer_state is not None:
        options = replace(options, shard_optimizer_state=shard_optimizer_state)
    if step.trains:
        steps = device_iterations or options.device_iterations
        options = replace(options, gradient_accumulation=micro_batches, device_iterations=steps)
    else:
        options = replace(options, device_iterations=micro_batches)
    return _planned(step, replace(choices, options=options, **others), start)[0]


def _stages_asked_for(graph: OpGraph, options: Options) -> Stages:
    """The stages of the options, or else the blocks that the model names on several IPUs."""
    if options.stages is not None:
        return options.stages
    if not several_ipus(graph):
        raise ValueError(
            "Nothing says where to cut the model. Give stages=4, or the layers of each IPU as stages=[0, 3, 3], or let "
            "the model name its parts with ipu.BeginBlock(layer, ipu_id=1)."
        )
    return BLOCKS


def _cut_of(
    step: CapturedModel, costs: Sequence[OpCost], stages: Stages
) -> tuple[Sequence[Block], Sequence[int], Sequence[int]]:
    """What is not cut apart, which of these begin a stage, and its IPU."""
    parts = [] if isinstance(stages, int | str | Mapping) else [one for one in stages if isinstance(one, NamedStage)]
    if stages in (BLOCKS, EACH_BLOCK) or parts:
        marked = named_blocks(step.graph)
        marks, blocks = [mark for mark, _ in marked], [block for _, block in marked]
        if parts:
            return blocks, *cut_at_stages(marks, parts)
        return blocks, *(cut_at_ipus(marks) if stages == BLOCKS else cut_at_each(marks))
    assert not isinstance(stages, str)
    cuts = cast(int | Sequence[int] | Mapping[str, int], stages)
    return step.blocks, *_firsts(step.graph, costs, step.blocks, cuts)


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

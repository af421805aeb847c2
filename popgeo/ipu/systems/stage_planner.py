"""Planning of a captured step in stages: its cost on several IPUs, and its run on this computer with the same cuts."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph, Role
from popgeo.capture.passes import fold_constants
from popgeo.engine.pipeline.staging import Pass, Staging
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.plan import OpCost
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Pipeline
from popgeo.ipu.report.stage_cost import StageCost
from popgeo.ipu.report.timeline import TimedPass, most_in_flight, num_depths, turns_of
from popgeo.ipu.stage_choices import USUAL, Schedule, checked_recompute
from popgeo.ipu.step_cost import accumulation
from popgeo.ipu.systems.cut_model import cut_model, requested_stages
from popgeo.ipu.systems.cut_stages import CutStep, Memories
from popgeo.ipu.systems.recomputation import recompute_of
from popgeo.ipu.systems.schedule import timed_passes
from popgeo.ipu.systems.stage_costs import UpdateCost, placed_costs, update_cycles, with_waits
from popgeo.ipu.systems.stage_cut import LayerOps, StageCut, layers_of
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.measure_memory import CODE


class StagePlanner:
    """A captured step, with the intermediate results that several plans share.

    Args:
        step: Step of one micro-batch.
        update: Function that returns the program of one update under options; None without training.
    """

    def __init__(self, step: CapturedStep, update: Callable[[Options], OpGraph | None]) -> None:
        self.graph, self._capture_update = fold_constants(step.expanded.graph), update
        # The planner holds no reference to the step, so the memory of folded constants is freed.
        self._trains, self._num_results, self._captured_ops = bool(step.trained), step.num_results, step.captured_ops
        self._costs: dict[float, Sequence[OpCost]] = {}  # by the memory share of products
        self._updates: dict[bool, UpdateCost] = {}  # by whether gradients are accumulated
        self._memories: Memories = {}

    @cached_property
    def layers(self) -> list[LayerOps]:
        """The layers of the forward pass."""
        return layers_of(self.graph)

    def plan(
        self,
        options: Options,
        *,
        serialize: Mapping[str, tuple[int, int]] | None = None,
        optimizer_off_chip: bool = False,
        overlap_host: bool = False,
        start: float | None = None,
    ) -> tuple[Pipeline, StageCut]:
        """Return the cost of the step over several IPUs, and its cut.

        Args:
            options: Machine, stages, schedule, recomputation, and the number of micro-batches and replicas.
            serialize: Number of outputs and of parts of each serialized layer, by name.
            optimizer_off_chip: Whether the optimizer's state is in streaming memory.
            overlap_host: Whether some tiles exchange with the host while the others compute.
            start: Time at which planning began. Default: now.

        Raises:
            ValueError: the stages do not cover the model, or the target has several IPUs, over which it spreads each
                operation.
        """
        start = time.perf_counter() if start is None else start
        if options.target.num_ipus > 1:
            raise ValueError(
                f"IpuTarget.num_ipus is {options.target.num_ipus}, which spreads operations or shards over IPUs, but "
                "each stage is on one IPU, with all shards of its layers. Set num_ipus to 1, because the stages "
                "determine the number of IPUs, or leave the stages out."
            )
        graph, target, trains = self.graph, options.target, self._trains
        order = Schedule(options.schedule or USUAL)
        count = options.gradient_accumulation if trains else options.device_iterations
        costs = partial(self._costs_of, options)
        assert options.stages is not None
        cut = cut_model(graph, self.layers, costs(0), options.stages, on_one_ipu=order is Schedule.PHASED)
        if order is Schedule.LOCK_STEP and cut.num_ipus == 1 < len(cut.ipus):
            order = Schedule.SHARDED  # PopTorch makes a pipeline only if a second IPU can work at the same time
        placed = placed_costs(graph, costs, cut, options, serialize or {})
        parts = CutStep(
            graph=graph,
            costs=placed,
            cut=cut,
            target=target,
            num_results=self._num_results,
            recompute=recompute_of(graph, options),
            memories=self._memories,
        ).stages()
        update = self._update(options)
        parts = with_waits(parts, update, options, order, count, overlap_host=overlap_host)
        forward, backward = [part.forward_pass for part in parts], [part.backward_pass for part in parts if trains]
        waits = [part.waits_forward for part in parts], [part.waits_backward for part in parts]
        tasks = timed_passes(forward, backward, cut.ipus, count, order, receive=waits)
        updating, extra = update_cycles(
            update, parts, cut.num_ipus, options, off_chip=optimizer_off_chip, all_off_chip=order is Schedule.PHASED
        )
        placement = {"serialize": serialize, "optimizer_off_chip": optimizer_off_chip, "overlap_host": overlap_host}
        adding = () if update is None or count == 1 else update.adding
        updates = () if update is None else update.costs
        seconds = time.perf_counter() - start
        planned = Pipeline(
            target=target,
            costs=(*(replace(one, count=count) for one in (*placed, *adding)), *updates),
            memory=fullest_tiles(parts, tasks, order, extra, target),
            schedule=order,
            stages=tuple(parts),
            tasks=tuple(tasks),
            micro_batches=count,
            replicas=options.replication_factor,
            turns=tuple(turns_of(tasks, len(parts), count)) if order is Schedule.LOCK_STEP else (),
            update=tuple(map(sum, zip(*updating.values(), strict=True))),
            update_parts=updating,
            host_seconds=target.host_call_seconds / (options.device_iterations if trains else 1),
            extra_bytes=extra,
            shared=_shared(graph, cut),
            recompute=checked_recompute(options.recompute),
            layers=cut.layers,
            plan_again=partial(self._plan_again, options, placement),
            captured_ops=self._captured_ops,
            state_bytes=sum(part.weight_bytes - part.held_before for part in parts) + sum(extra),
            compile_seconds=seconds,
            seconds_to_plan=seconds,
        )
        return planned, cut

    def _plan_again(self, options: Options, placement: Mapping[str, Any], **changes: Any) -> Pipeline:
        """Return the plan with other options and placement."""
        placed = {name: changes.pop(name, before) for name, before in placement.items()}
        return self.plan(replace(options, **changes), **placed)[0]

    def _costs_of(self, options: Options, ipu: int) -> Sequence[OpCost]:
        """Return the cost of each operation on an IPU of a replica."""
        share = options.proportion_of(ipu)
        if share not in self._costs:
            self._costs[share] = cost(self.graph, options.target, matmul_proportion=share)
        return self._costs[share]

    def _update(self, options: Options) -> UpdateCost | None:
        accumulates = options.gradient_accumulation * options.replication_factor > 1
        if accumulates not in self._updates and (graph := self._capture_update(options)) is not None:
            costs, adding = cost(graph, options.target), cost(accumulation(graph), options.target)
            self._updates[accumulates] = UpdateCost(graph=graph, costs=costs, adding=adding)
        return self._updates.get(accumulates)


def _shared(graph: OpGraph, cut: StageCut) -> tuple[str, ...]:
    """Return the parameters that operations on several IPUs read."""
    names = {v: given.name for given, v in graph.inputs_of(Role.PARAMETER).items()}
    used: dict[int, set[int]] = {}
    for op, stage in zip(graph.ops, cut.stage_of, strict=True):
        for v in op.reads() if op.phase == "forward" else ():
            if v in names:
                used.setdefault(v, set()).add(cut.ipus[stage])
    return tuple(names[v] for v, where in used.items() if len(where) > 1)


def fullest_tiles(
    stages: Sequence[StageCost],
    tasks: Sequence[TimedPass],
    schedule: Schedule,
    extra_bytes: Sequence[int],
    target: IpuTarget,
) -> tuple[float, ...]:
    """Return the memory of the fullest tile of each IPU, as a share of a tile's memory.

    Args:
        stages: Stages with their memory.
        tasks: Every pass of every micro-batch.
        schedule: Order of the passes.
        extra_bytes: Bytes of gradients and optimizer state on each IPU.
        target: One IPU.
    """
    tiles = target.num_tiles
    flying = [most_in_flight(tasks, number, any(one.backward for one in stages)) for number in range(len(stages))]
    found = []
    for ipu, extra in enumerate(extra_bytes):
        own = [(stage, most) for stage, most in zip(stages, flying, strict=True) if stage.ipu == ipu]
        in_turn = schedule is Schedule.SHARDED
        need = _phase_bytes(own, tiles) if schedule is Schedule.PHASED else _stage_bytes(own, tiles, in_turn=in_turn)
        found.append(float((need + extra / tiles).max() / target.memory_per_tile))
    return tuple(found)


def _phase_bytes(own: Sequence[tuple[StageCost, int]], tiles: int) -> np.ndarray:
    """Return the bytes of each tile if stages run one after the other and the weights of the others are off chip.

    The code of all stages stays on the tiles. The result has the shape [num_tiles].
    """
    code = [np.sum([stage.memory.categories[name] for name in CODE], axis=0) for stage, _ in own]
    kept = [(flying - 1) * stage.stash_bytes / tiles for stage, flying in own]
    rest = [stage.memory.peak - its + more for (stage, _), its, more in zip(own, code, kept, strict=True)]
    return np.sum(code, axis=0) + np.max(rest, axis=0)


def _stage_bytes(own: Sequence[tuple[StageCost, int]], tiles: int, *, in_turn: bool) -> np.ndarray:
    """Return bytes of each tile of an IPU with stages that run one at a time and keep their results.

    Weights and code that stages share count once. Inputs and outputs of a stage count while it works. If a micro-batch
    ends before the next one begins, only earlier stages keep results at that time. [num_tiles]
    """
    always, works = np.zeros(tiles), [np.zeros(tiles)]
    kept = 0 if in_turn else sum(stage.stash_bytes for stage, _ in own)
    for stage, flying in own:
        held = stage.memory.categories
        moving = held["inputs and results"] + held["stack"]
        always += stage.memory.always_live - moving + ((flying - 1) * stage.stash_bytes - stage.held_before) / tiles
        others = kept if in_turn else kept - stage.stash_bytes
        works.append(stage.memory.peak - stage.memory.always_live + moving + others / tiles)
        kept += stage.stash_bytes if in_turn else 0
    return always + np.max(works, axis=0)


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """The plan of a step in stages.

    Attributes:
        pipeline: Cost of the step.
        staging: Operations of each stage, and the order of the passes.
    """

    pipeline: Pipeline
    staging: Staging


def stage_plan(step: CapturedStep, update: Callable[[], OpGraph | None], options: Options) -> StagePlan | None:
    """Return the plan for the options' stages, or else the model's blocks; None if neither has several.

    Args:
        step: Step of one micro-batch.
        update: Function that returns the program of one update; None without training.
        options: Stages, their order, and the number of micro-batches.

    Raises:
        ValueError: the stages do not cover the model, an update has too few micro-batches for them, or results are to
            be recomputed without stages.
    """
    planner = StagePlanner(step, lambda options: update())
    asked = requested_stages(planner.graph, options)
    if asked is None:
        if options.recompute and step.trained:
            raise ValueError(
                f"Options.recompute is {options.recompute!r}, but a step without stages recomputes nothing. Also set "
                "Options.stages, to 1 for one IPU, or leave recompute out."
            )
        return None
    planned, cut = planner.plan(replace(options, stages=asked))
    _require_enough(planned)
    recompute = recompute_of(planner.graph, options) if step.trained else None
    passes = [Pass(task.stage, task.micro_batch, task.backward) for task in planned.tasks]
    staging = Staging(stage_of=cut.stage_of, order=tuple(passes), recompute=recompute, names=cut.names)
    return StagePlan(pipeline=planned, staging=staging)


def num_pipeline_stages(planned: Pipeline) -> int:
    """Return the number of pipeline stages; consecutive stages on one IPU count once, as in PopTorch."""
    return 1 + sum(one.ipu != other.ipu for one, other in zip(planned.stages, planned.stages[1:], strict=False))


class TooFewMicroBatchesError(ValueError):
    """The error of an update with too few micro-batches to fill its pipeline of `stages`."""

    stages: int


def _require_enough(planned: Pipeline) -> None:
    """Raise if training has fewer micro-batches than the pipeline needs to fill.

    In lock-step, a micro-batch takes 2 * stages - 1 turns. PopTorch demands as many micro-batches
    for each update (its user guide: "the number of pipeline stages (forward and backward)").
    """
    stages, count = num_pipeline_stages(planned), planned.micro_batches
    needed = num_depths(stages, trains=True) if planned.schedule is Schedule.LOCK_STEP else stages
    if planned.trains and planned.schedule not in (Schedule.SHARDED, Schedule.PHASED) and count < needed:
        error = TooFewMicroBatchesError(
            f"Options.gradient_accumulation is {count}, but to train {stages} stages with schedule "
            f"{planned.schedule.value!r} an update needs at least {needed} micro-batches. Raise it, use fewer "
            "stages, or choose schedule='sharded', which sends one micro-batch at a time through all stages."
        )
        error.stages = stages
        raise error

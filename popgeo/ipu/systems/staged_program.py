"""The tile program of a call that runs in stages: the tiles of all IPUs, each stage on its IPU's tiles."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.engine.pipeline.staging import StagePart, StashedValue, owner_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.graph_cost import plan_all
from popgeo.ipu.systems.stage_planner import StagePlan
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.graph_program import add_operations, declare
from popgeo.ipu.tiles.join_program import Joiner
from popgeo.ipu.tiles.lower.builder import Builder, Places, elements_of, region_of
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.map_tensors import map_storages, spread, storage_sizes
from popgeo.ipu.tiles.program import Training
from popgeo.ipu.tiles.steps import HostCopy, Region, Step, shifted_mapping, shifted_steps
from popgeo.ipu.tiles.tile_mapping import TileMapping


def left_by(kept: StashedValue, part: int | None, micro_batch: int) -> str:
    """Return the variable of a kept value, named by the part that leaves it; None for the call."""
    how = "given" if part is None else "before" if kept.before else "sent"
    return f"{how} {kept.value}, part {part}, micro-batch {micro_batch}"


class StagedJoiner(Joiner):
    """The builder of a program in stages: passes with their inputs and results, all-reduce and update.

    It uses the tiles of all IPUs; the tiles of IPU `i` begin at `i` times a target's tiles. Weights and gradients have
    the names of `join`, kept values the names of `left_by`.

    Args:
        graph: The captured step, constants folded.
        num_results: Number of its outputs that the host receives; the other outputs are gradients.
        target: One IPU, with few tiles.
        training: Treatment of gradients; without updates for inference.
        parts: Passes of each stage.
        plan: Operations of each stage, and the order of the passes.
    """

    def __init__(
        self,
        graph: OpGraph,
        num_results: int,
        target: IpuTarget,
        training: Training,
        parts: Sequence[StagePart],
        plan: StagePlan,
    ) -> None:
        self._one, self._parts, self._order = target, parts, plan.staging.order
        self._ipus = [stage.ipu for stage in plan.pipeline.stages]
        num_ipus = max(self._ipus) + 1
        self._mappings: dict[int, dict[int, TileMapping]] = {ipu: {} for ipu in range(num_ipus)}
        self._home: dict[int, int] = {}
        self._state = {graph.values[v].storage: v for one, v in graph.inputs.items() if one.role is not Role.ARGUMENT}
        drafts = [self._draft(part) for part in parts]
        sizes = storage_sizes(graph)
        homes = {storage: spread(sizes[storage], target.num_tiles) for storage in self._state}
        homes |= {storage: self._on(ipu, self._mappings[ipu][storage]) for storage, ipu in self._home.items()}
        super().__init__(graph, num_results, replace(target, num_ipus=num_ipus), training, homes)
        self._copies = self._declare_copies()
        self._steps = [self._place(rank, *draft) for rank, draft in enumerate(drafts)]
        self._micro_batches = {now.micro_batch for now in self._order}
        self._arguments = {v: one for one, v in graph.inputs_of(Role.ARGUMENT).items()}
        self._results_of = [(v, owner_of(graph, v)) for v in graph.outputs[:num_results] if v is not None]
        self._declare_arguments()
        self._senders = self._declare_left()

    def iteration_steps(self, accumulation: int = 1) -> None:
        """Add all passes of a round."""
        for (ipu, storage), copied in self._copies.items():
            variable, start = self._places[storage]
            source = Region(variable=variable, elements=start + copied.elements)
            copy(self._scope(f"weights for IPU {ipu}"), copied, source)
        first = {now.micro_batch: number for number, now in reversed(list(enumerate(self._order)))}
        last = {now.micro_batch: number for number, now in enumerate(self._order)}
        rank_of = {(part.stage, part.backward): rank for rank, part in enumerate(self._parts)}
        for number, now in enumerate(self._order):
            direction = "backward" if now.backward else "forward"
            with self.builder.repeat(1, f"stage {now.stage} {direction} {now.micro_batch}"):
                if first[now.micro_batch] == number:
                    self._receive(now.micro_batch)
                self._pass(rank_of[now.stage, now.backward], now.micro_batch, accumulation > 1)
                if last[now.micro_batch] == number:
                    self._return(now.micro_batch)

    def _draft(self, part: StagePart) -> tuple[Builder, Places]:
        """Return the steps of a part on the tiles of one IPU."""
        ipu, graph = self._ipus[part.stage], part.graph
        plans = plan_all(graph, Machine(target=self._one))
        state = graph.state_storages()
        known = {storage: at for storage, at in self._mappings[ipu].items() if storage in state}
        mappings = map_storages(graph, plans, self._one.all_tiles, known)
        for storage in state:
            self._home.setdefault(storage, ipu)
            self._mappings[ipu].setdefault(storage, mappings[storage])
        builder = Builder(self._one.num_tiles)
        places = declare(builder, graph, mappings, "s")
        add_operations(builder, graph, plans, places)
        return builder, places

    def _place(self, rank: int, draft: Builder, places: Places) -> tuple[list[Step], Places]:
        """Return the steps of a draft on the tiles of the part's IPU, with variables of the whole program."""
        part = self._parts[rank]
        ipu = self._ipus[part.stage]
        there = {}
        for storage in part.graph.state_storages():
            copied = self._copies.get((ipu, storage))
            there[storage] = self._places[storage] if copied is None else (copied.variable, 0)
        renamed = {places[storage][0]: at for storage, at in there.items()}
        for name, variable in draft.variables.items():
            if name not in renamed:
                renamed[name] = f"part{rank}.{name}", 0
                self.builder.declare(renamed[name][0], variable.dtype, self._on(ipu, variable.mapping))
        self.builder.constants |= {renamed[name][0]: values for name, values in draft.constants.items()}
        self.builder.fallbacks += draft.fallbacks
        steps = shifted_steps(draft.steps, renamed, ipu * self._one.num_tiles)
        return steps, {storage: renamed[name] for storage, (name, _) in places.items()}

    def _pass(self, rank: int, micro_batch: int, accumulates: bool) -> None:
        part, (steps, places) = self._parts[rank], self._steps[rank]
        graph = self._graph
        for kept in part.receives:
            copy(self._scope("receive"), region_of(graph, places, kept.value), self._found(kept, rank, micro_batch))
        for kept in part.saves:
            saved = self._left(kept, rank, micro_batch, kept.value)
            copy(self._scope("save"), saved, region_of(graph, self._places, kept.value))
        self.builder.steps += steps
        for value in part.sends:
            sent = self._left(StashedValue(value), rank, micro_batch, value)
            copy(self._scope("send"), sent, region_of(graph, places, value))
        wanted = dict(zip(self.training.trained, graph.outputs[self._num_results :], strict=True))
        for name in part.gradients:
            v = wanted[name]
            assert v is not None
            self._collect_one(name, region_of(graph, places, v), accumulates)

    def _found(self, kept: StashedValue, rank: int, micro_batch: int, v: int | None = None) -> Region:
        """Return a value that an earlier part left last, or an argument or weight; `v` selects a view of it."""
        v = kept.value if v is None else v
        part = max((sender for sender in self._senders.get(kept, ()) if sender < rank), default=None)
        if part is None and kept.value not in self._arguments:
            return self._region(v)
        return self._left(kept, part, micro_batch, v)

    def _left(self, kept: StashedValue, part: int | None, micro_batch: int, v: int) -> Region:
        """Return the elements of a value, or of a view of it, that a part has left."""
        return Region(variable=left_by(kept, part, micro_batch), elements=elements_of(self._graph.values[v]))

    def _receive(self, micro_batch: int) -> None:
        streams = {left_by(StashedValue(v), None, micro_batch): str(one) for v, one in self._arguments.items()}
        if streams:
            self.builder.steps.append(HostCopy(to_host=False, streams=streams))

    def _return(self, micro_batch: int) -> None:
        owners, after_all = [owner for _, owner in self._results_of], len(self._parts)
        found = {owner: self._found(StashedValue(owner), after_all, micro_batch) for owner in owners}
        streams = {region.variable: f"result:{owner}" for owner, region in found.items()}
        self.builder.steps.append(HostCopy(to_host=True, streams=streams))

    def result_places(self) -> tuple[tuple[str, np.ndarray], ...]:
        """Return the variable and the elements of each result."""
        found = ((owner, self._found(StashedValue(owner), len(self._parts), 0, v)) for v, owner in self._results_of)
        return tuple((f"result:{owner}", region.elements) for owner, region in found)

    def input_places(self) -> dict[Input, Region]:
        """Return the region of each input."""
        return {
            one: self._found(StashedValue(v), 0, 0) if one.role is Role.ARGUMENT else self._region(v)
            for one, v in self._graph.inputs.items()
        }

    def _declare_copies(self) -> dict[tuple[int, int], Region]:
        """Declare a copy of a weight on each IPU that uses it, except its first IPU."""
        copies = {}
        for ipu, mappings in self._mappings.items():
            for storage, mapping in mappings.items():
                if self._home[storage] != ipu:
                    if storage in self._graph.mutated_storages():
                        given = next(one for one, v in self._graph.inputs.items() if v == self._state[storage])
                        raise ValueError(
                            f"{given.name} changes on IPU {self._home[storage]} and is also used on IPU {ipu}; tiles "
                            "of several IPUs cannot hold one buffer. Put the layers that use it on one IPU."
                        )
                    dtype, there = self._graph.values[self._state[storage]].dtype, self._on(ipu, mapping)
                    copies[ipu, storage] = self.builder.declare(f"copy{ipu}.{storage}", dtype, there)
        return copies

    def _declare_arguments(self) -> None:
        """Declare a variable for each argument of each micro-batch, on the tiles of its first use."""
        for v in self._arguments:
            value = self._graph.values[v]
            rank = next((r for r, part in enumerate(self._parts) if StashedValue(v) in part.receives), None)
            mapping = spread(storage_sizes(self._graph)[value.storage], self._one.num_tiles)
            if rank is not None:
                mapping = self.builder.variables[self._steps[rank][1][value.storage][0]].mapping
            for micro_batch in self._micro_batches:
                self.builder.declare(left_by(StashedValue(v), None, micro_batch), value.dtype, mapping)

    def _declare_left(self) -> dict[StashedValue, list[int]]:
        """Declare a variable for each value that a part leaves; return the parts that leave each value."""
        senders: dict[StashedValue, list[int]] = {}
        for rank, part in enumerate(self._parts):
            for kept in [*map(StashedValue, part.sends), *part.saves]:
                value = self._graph.values[kept.value]
                places = self._places if kept.before or value.storage in self._state else self._steps[rank][1]
                mapping = self.builder.variables[places[value.storage][0]].mapping
                senders.setdefault(kept, []).append(rank)
                for micro_batch in self._micro_batches:
                    self.builder.declare(left_by(kept, rank, micro_batch), value.dtype, mapping)
        return senders

    def _on(self, ipu: int, mapping: TileMapping) -> TileMapping:
        return shifted_mapping(mapping, ipu * self._one.num_tiles)

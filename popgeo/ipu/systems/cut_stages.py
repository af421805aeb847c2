"""The cost of each stage of a cut step: cycles, messages and memory."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.engine.pipeline.staging import Recompute
from popgeo.ipu.cost.links import message_seconds
from popgeo.ipu.cost.plan import OpCost, Profile
from popgeo.ipu.report.stage_cost import StageCost, StageMessage
from popgeo.ipu.step_cost import host_transfer, total
from popgeo.ipu.systems.recomputation import content_reads, with_recomputation
from popgeo.ipu.systems.stage_cut import StageCut
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.measure_memory import CODE, code_of, memory
from popgeo.ipu.tiles.memory_use import MemoryUse

Memories = dict[tuple[object, ...], MemoryUse]


@dataclass
class _IpuContents:
    """The storages of weights and the costed operations of an IPU's earlier stages."""

    weights: set[int] = field(default_factory=set)
    costs: list[OpCost] = field(default_factory=list)

    def without_shared_code(self, use: MemoryUse, costs: Sequence[OpCost]) -> MemoryUse:
        """Return the memory of another stage without code that the IPU already has."""
        if not self.costs:
            return use
        tiles = len(use.peak)
        before, together = code_of(self.costs, tiles), code_of([*self.costs, *costs], tiles)
        shared = {name: use.categories[name] - (together[name] - before[name]) for name in CODE}
        less = sum(shared.values(), np.zeros_like(use.peak))
        own = {name: nbytes - shared.get(name, 0) for name, nbytes in use.categories.items()}
        return replace(use, categories=own, always_live=use.always_live - less, peak=use.peak - less)


@dataclass(frozen=True, kw_only=True)
class CutStep:
    """A step cut into stages, each on an IPU.

    Attributes:
        graph: The step of one micro-batch.
        costs: Costs of its operations on one IPU, in order.
        cut: Stage of each operation.
        target: One IPU.
        num_results: Number of the graph's outputs that are results; the other outputs are gradients.
        recompute: Layers with results that a stage keeps next to its inputs, and from which it repeats its forward
            pass. None if it keeps all values that its backward pass reads.
        memories: Memory of stages of the same graph that earlier plans computed; new stages are added.
    """

    graph: OpGraph
    costs: Sequence[OpCost]
    cut: StageCut
    target: IpuTarget
    num_results: int
    recompute: Recompute | None
    memories: Memories = field(default_factory=dict)

    def stages(self) -> list[StageCost]:
        """Return the cost of every stage."""
        there = {ipu: _IpuContents() for ipu in self.cut.ipus}
        return [self._stage(number, there[ipu]) for number, ipu in enumerate(self.cut.ipus)]

    @cached_property
    def made_in(self) -> dict[int, int]:
        """The stage that makes each value."""
        of = self.cut.stage_of
        return {v: of[i] for i, op in enumerate(self.graph.ops) for v in op.makes() if v not in op.reads()}

    @cached_property
    def maker(self) -> dict[int, int]:
        """The stage that first makes each storage; values made later are views of it."""
        made = [(self.graph.values[v], stage) for v, stage in self.made_in.items()]
        return {value.storage: stage for value, stage in reversed(made) if value.producer is not None}

    @cached_property
    def sums(self) -> set[int]:
        """Operations that add gradient parts of several stages; each stage accumulates its own part."""
        gradients = set(self.graph.outputs[self.num_results :])
        adds = [index for index, op in enumerate(self.graph.ops) if op.target == "aten.add.Tensor"]
        found = [index for index in adds if gradients.issuperset(self.graph.ops[index].makes())]
        return {index for index in found if any(self._is_foreign(v, index) for v in self.graph.ops[index].reads())}

    def _is_foreign(self, v: int, index: int) -> bool:
        """Check whether a value comes from a different stage than the operation."""
        return self.made_in.get(v, self.cut.stage_of[index]) != self.cut.stage_of[index]

    @cached_property
    def own(self) -> list[list[int]]:
        """The operations of each stage."""
        stage_of = self.cut.stage_of
        return [[index for index, of in enumerate(stage_of) if of == stage] for stage in range(len(self.cut.ipus))]

    @cached_property
    def needed_elsewhere(self) -> set[int]:
        """Values that an operation of another stage reads, except to add gradient parts."""
        reads = ((index, v) for index, op in enumerate(self.graph.ops) if index not in self.sums for v in op.reads())
        return {v for index, v in reads if self._is_foreign(v, index)}

    def _stage(self, number: int, on_ipu: "_IpuContents") -> StageCost:
        """Return the cost of a stage, and add its contents to the contents of its IPU."""
        own = self.own[number]
        cycles = {i: self.costs[i].plan.cycles(Profile.CALIBRATED) for i in own}
        forward = sum(cycles[i] for i in own if self.costs[i].phase == "forward")
        backward = sum(cycles[i] for i in own if self.costs[i].phase == "backward")
        into_forward, into_backward, shared = self._received(number)
        transfers = [*self._transfers(into_forward, number, False), *self._transfers(into_backward, number, True)]
        computed = [index for index in own if index not in self.sums]
        part = self._subgraph(computed, number)
        state = [v for given, v in part.inputs.items() if given.role in (Role.PARAMETER, Role.BUFFER)]
        held = {part.values[v].storage: part.values[v].nbytes for v in state}
        order = computed
        if self.recompute is not None and backward:
            part, places, again = with_recomputation(part, self.recompute, is_last=number == len(self.cut.ipus) - 1)
            order = [computed[place] for place in places]
            backward += sum(cycles[computed[place]] for place in again)
        costs = [self.costs[index] for index in order]
        if (key := (self.cut.ipus[number], self.recompute, *own)) not in self.memories:
            self.memories[key] = memory(part, costs, self.target, num_results=None)
        before = sum(nbytes for storage, nbytes in held.items() if storage in on_ipu.weights)
        use = on_ipu.without_shared_code(self.memories[key], costs)
        on_ipu.weights |= held.keys()
        on_ipu.costs += costs
        return StageCost(
            layers=self.cut.names[number],
            ipu=self.cut.ipus[number],
            forward=forward,
            backward=backward,
            receive_forward=sum(t.cycles for t in transfers if not t.backward),
            receive_backward=sum(t.cycles for t in transfers if t.backward),
            transfers=tuple(transfers),
            host=self._host_cycles(part),
            received_bytes=sum(into_forward.values()) + sum(into_backward.values()),
            shared_bytes=sum(shared.values()),
            weight_bytes=sum(held.values()),
            stash_bytes=_stash(part, held.keys()),
            memory=use,
            held_before=before,
        )

    def _received(self, stage: int) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
        """Return the bytes of received storages: for forward, for backward, and gradient parts to add.

        Gradient parts that another stage of the same IPU computes are not received.
        """
        forward, backward, shared = dict[int, int](), dict[int, int](), dict[int, int]()
        on_ipu = {other for other, ipu in enumerate(self.cut.ipus) if ipu == self.cut.ipus[stage]}
        for index in self.own[stage]:
            op = self.graph.ops[index]
            into = shared if index in self.sums else backward if op.phase == "backward" else forward
            for v in op.reads():
                value = self.graph.values[v]
                here = on_ipu if into is shared else {stage}
                if self.made_in.get(v, stage) not in here and value.storage not in forward:
                    into[value.storage] = value.nbytes
        return forward, backward, shared

    def _subgraph(self, own: Sequence[int], stage: int) -> OpGraph:
        """Return the operations of a stage as a graph, with values of other stages as inputs and outputs.

        Gradients of its parameters are no outputs, nor are gradient parts that another stage adds.
        """
        graph, made_in = self.graph, self.made_in
        place: dict[int | None, int] = {index: number for number, index in enumerate(own)}
        ops = tuple(graph.ops[index] for index in own)
        inside = {v for op in ops for v in (*op.reads(), *op.makes())}
        values = tuple(value.made_by(place.get(value.producer)) for value in graph.values)
        inputs = {given: v for given, v in graph.inputs.items() if v in inside}
        for v in sorted(v for op in ops for v in op.reads()):
            if made_in.get(v, stage) != stage:
                inputs[Input(Role.ARGUMENT, f"from stage {made_in[v]}: {v}")] = v
        sent = {v for v in self.needed_elsewhere if made_in[v] == stage}
        results = {v for v in graph.outputs[: self.num_results] if v is not None and made_in.get(v) == stage}
        constants = {v: tensor for v, tensor in graph.constants.items() if v in inside}
        return OpGraph(
            ops=ops, values=values, inputs=inputs, outputs=tuple(sorted(sent | results)), constants=constants
        )

    def _transfers(self, nbytes: dict[int, int], stage: int, backward: bool) -> list[StageMessage]:
        """Return one message from each other IPU that sends something."""
        receiver = self.cut.ipus[stage]
        by_sender: dict[int, int] = {}
        for storage, size in nbytes.items():
            sender = self.cut.ipus[self.maker[storage]]
            by_sender[sender] = by_sender.get(sender, 0) + size
        by_sender.pop(receiver, None)  # values of another stage on the same IPU are not sent

        def message(sender: int, size: int) -> StageMessage:
            cycles = message_seconds(size, sender, receiver, self.target) * self.target.clock
            return StageMessage(sender=sender, receiver=receiver, backward=backward, nbytes=size, cycles=cycles)

        return [message(*one) for one in by_sender.items()]

    def _host_cycles(self, part: OpGraph) -> float:
        """Return the cycles of a stage's transfers from and to the host, for one micro-batch."""
        given = set(self.graph.inputs_of(Role.ARGUMENT).values()) & set(part.inputs.values())
        results = {v for v in part.outputs if v is not None} & set(self.graph.outputs[: self.num_results])
        moved = (host_transfer(part, [*values], "host", self.target) for values in (given, results))
        return sum(total(transfer).cycles for transfer in moved)


def _stash(part: OpGraph, held: Set[int]) -> int:
    """Return the bytes of forward results that the backward pass reads, without weights and constants."""
    before = {part.values[v].storage for op in part.ops if op.phase == "forward" for v in (*op.reads(), *op.makes())}
    before -= held | {part.values[v].storage for v in part.constants}
    kept: dict[int, int] = {}
    read = [v for op in part.ops if op.phase == "backward" for v in content_reads(op)]
    for value in map(part.values.__getitem__, read):
        if value.storage in before:
            kept[value.storage] = max(kept.get(value.storage, 0), min(value.nbytes, value.end))
    return sum(kept.values())

"""What each stage of a cut step computes, receives and keeps."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.engine.pipeline.staging import Recompute
from popgeo.ipu.cost.links import message_seconds
from popgeo.ipu.cost.plan import OpCost, Profile
from popgeo.ipu.planning.cut import Cut
from popgeo.ipu.planning.repeated import contents, repeated
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.measure_memory import memory
from popgeo.ipu.tiles.memory_use import MemoryUse


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What one IPU sends another for one pass of each micro-batch.

    Attributes:
        sender: The IPU that it comes from.
        receiver: The IPU that receives it.
        backward: Whether it is gradients, for the backward pass.
        nbytes: How much.
        cycles: How long the receiver takes for it.
    """

    sender: int
    receiver: int
    backward: bool
    nbytes: int
    cycles: float


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a pipeline.

    Attributes:
        layers: Its first and last layer.
        ipu: Where it runs.
        forward: Cycles of its forward pass of one micro-batch.
        backward: Cycles of its backward pass, recomputation included; 0 where nothing is trained.
        receive_forward: Cycles in which it receives what the stages before send for a forward pass.
        receive_backward: Cycles in which it receives the gradients that later stages send.
        transfers: The messages that these cycles are made of.
        host: Cycles in which a forward pass waits for the host: for its inputs, and to send results.
        received_bytes: Bytes that it receives from other stages for both passes.
        shared_bytes: Parts of gradients that other stages work out, of parameters that both use, such as tied
            embeddings; added up where they are made and received once an update.
        weight_bytes: Of its parameters and buffers.
        stash_bytes: That it keeps of each micro-batch from its forward to its backward pass.
        memory: Bytes of each tile for one micro-batch in flight, without gradients and optimizer state. A stage that
            repeats its forward pass has dropped before what no layer keeps.
        held_before: Bytes of its weights that an earlier stage on the same IPU holds already, such as tied embeddings.
        stash_copy: Cycles in which what it keeps is copied to where it waits, and as many in which it comes back.
        accumulate: Cycles in which a backward pass adds its gradients to those of the micro-batches before.
        host_overlaps: Whether the host's transfers take place while it computes.
        streaming_forward: Cycles in which a forward pass waits for streaming memory, in sequential phases.
        streaming_backward: The same of a backward pass.
    """

    layers: str
    ipu: int
    forward: float
    backward: float
    receive_forward: float
    receive_backward: float
    transfers: tuple[Transfer, ...]
    host: float
    received_bytes: int
    shared_bytes: int
    weight_bytes: int
    stash_bytes: int
    memory: MemoryUse
    held_before: int = 0
    stash_copy: float = 0.0
    accumulate: float = 0.0
    host_overlaps: bool = False
    streaming_forward: float = 0.0
    streaming_backward: float = 0.0

    @property
    def waits_forward(self) -> float:
        """Cycles of a forward pass in which it computes nothing: for other IPUs, the host and streaming memory."""
        busy = self.receive_forward + self.streaming_forward
        return busy + (max(0.0, self.host - busy - self.forward) if self.host_overlaps else self.host)

    @property
    def waits_backward(self) -> float:
        """The same of a backward pass."""
        return self.receive_backward + self.streaming_backward

    @property
    def forward_pass(self) -> float:
        """Cycles of a forward pass with all that it waits for and puts aside."""
        return self.waits_forward + self.forward + self.stash_copy

    @property
    def backward_pass(self) -> float:
        """Cycles of a backward pass with all that it waits for, takes back and adds up."""
        return self.waits_backward + self.stash_copy + self.backward + self.accumulate


def stages_of(
    graph: OpGraph,
    costs: Sequence[OpCost],
    cut: Cut,
    target: IpuTarget,
    *,
    num_results: int,
    recompute: Recompute | None,
    memories: dict[tuple[object, ...], MemoryUse] | None = None,
) -> list[Stage]:
    """Every stage of a cut step.

    Args:
        graph: The step of one micro-batch.
        costs: Plans of its operations, in order, on one IPU.
        cut: Which stage each operation belongs to.
        target: One IPU.
        num_results: How many of the graph's outputs are results; the others are gradients.
        recompute: Which layers' results a stage keeps, besides what it receives, and repeats its forward pass from;
            None where it keeps all that its backward pass reads.
        memories: Of stages of the same graph that were worked out before, by what tells them apart; new ones are added.
    """
    known = {} if memories is None else memories
    made_in = {v: cut.stage_of[index] for index, op in enumerate(graph.ops) for v in op.makes() if v not in op.reads()}
    stages: list[Stage] = []
    on_ipu: dict[int, set[int]] = {}  # storages of weights
    for stage, ipu in enumerate(cut.ipus):
        here = on_ipu.setdefault(ipu, set())
        stages.append(_stage(graph, costs, cut, target, stage, made_in, num_results, recompute, known, here))
    return stages


def _stage(
    graph: OpGraph,
    costs: Sequence[OpCost],
    cut: Cut,
    target: IpuTarget,
    stage: int,
    made_in: dict[int, int],
    num_results: int,
    recompute: Recompute | None,
    memories: dict[tuple[object, ...], MemoryUse],
    on_ipu: set[int],
) -> Stage:
    own = [index for index, of in enumerate(cut.stage_of) if of == stage]
    cycles = {i: costs[i].plan.cycles(Profile.CALIBRATED) for i in own}
    forward = sum(cycles[i] for i in own if costs[i].phase == "forward")
    backward = sum(cycles[i] for i in own if costs[i].phase == "backward")
    arrives: dict[bool, dict[int, int]] = {True: {}, False: {}}  # storages received by phase, and their bytes
    shared: dict[int, int] = {}
    sums = _sums(graph, made_in, cut, num_results)
    for index in own:
        op = graph.ops[index]
        for v in op.reads():
            value = graph.values[v]
            if made_in.get(v, stage) != stage and value.storage not in arrives[False]:
                into = shared if index in sums else arrives[op.phase == "backward"]
                into[value.storage] = value.nbytes
    transfers = [
        t for phase in (False, True) for t in _transfers(arrives[phase], graph, made_in, cut, stage, target, phase)
    ]
    computed = [index for index in own if index not in sums]
    part = subgraph(graph, computed, made_in, stage, num_results, sums)
    held = {part.values[v].storage: part.values[v].nbytes for v in _state(part)}
    order = computed
    if recompute is not None and backward:
        passes = repeated(part, recompute)
        part, order = passes.graph, [computed[number] for number in passes.ops]
        backward += sum(cycles[computed[number]] for number in passes.repeated)
    if (key := (cut.ipus[stage], recompute, *own)) not in memories:
        memories[key] = memory(part, [costs[index] for index in order], target, num_results=None)
    before = sum(nbytes for storage, nbytes in held.items() if storage in on_ipu)
    on_ipu.update(held)
    return Stage(
        layers=cut.names[stage],
        ipu=cut.ipus[stage],
        forward=forward,
        backward=backward,
        receive_forward=sum(t.cycles for t in transfers if not t.backward),
        receive_backward=sum(t.cycles for t in transfers if t.backward),
        transfers=tuple(transfers),
        host=_host_cycles(graph, part, num_results, target),
        received_bytes=sum(sum(nbytes.values()) for nbytes in arrives.values()),
        shared_bytes=sum(shared.values()),
        weight_bytes=sum(held.values()),
        stash_bytes=_stash(part, held.keys()),
        memory=memories[key],
        held_before=before,
    )


def _sums(graph: OpGraph, made_in: dict[int, int], cut: Cut, num_results: int) -> set[int]:
    """The operations that add parts of a gradient from several stages; each part is accumulated where it is made."""
    gradients = set(graph.outputs[num_results:])
    return {
        index
        for index, op in enumerate(graph.ops)
        if op.target == "aten.add.Tensor"
        and gradients.issuperset(op.makes())
        and any(made_in.get(v, cut.stage_of[index]) != cut.stage_of[index] for v in op.reads())
    }


def subgraph(
    graph: OpGraph,
    own: Sequence[int],
    made_in: dict[int, int],
    stage: int,
    num_results: int,
    sums: Set[int] = frozenset(),
) -> OpGraph:
    """The operations of one stage as a graph that receives what other stages make and returns what they need.

    Gradients of its parameters stay in it, and so do their parts that the operations `sums` add elsewhere.
    """
    place = {index: number for number, index in enumerate(own)}
    ops = tuple(graph.ops[index] for index in own)
    inside = {v for op in ops for v in (*op.reads(), *op.makes())}
    values = tuple(
        replace(value, producer=place.get(value.producer) if value.producer is not None else None)
        for value in graph.values
    )
    inputs = {given: v for given, v in graph.inputs.items() if v in inside}
    for v in sorted(v for op in ops for v in op.reads()):
        if made_in.get(v, stage) != stage:
            inputs[Input(Role.ARGUMENT, f"from stage {made_in[v]}: {v}")] = v
    read_elsewhere = {
        v
        for index, op in enumerate(graph.ops)
        if index not in place and index not in sums
        for v in op.reads()
        if made_in.get(v) == stage
    }
    results = {v for v in graph.outputs[:num_results] if v is not None and made_in.get(v) == stage}
    constants = {v: tensor for v, tensor in graph.constants.items() if v in inside}
    outputs = tuple(sorted(read_elsewhere | results))
    return OpGraph(ops=ops, values=values, inputs=inputs, outputs=outputs, constants=constants)


def _transfers(
    nbytes: dict[int, int],
    graph: OpGraph,
    made_in: dict[int, int],
    cut: Cut,
    stage: int,
    target: IpuTarget,
    backward: bool,
) -> list[Transfer]:
    """One message from each IPU that sends something, one after the other."""
    to = cut.ipus[stage]
    maker: dict[int, int] = {}  # who made it first; later ones are views of it
    for v, of in made_in.items():
        if graph.values[v].producer is not None:
            maker.setdefault(graph.values[v].storage, of)
    by_sender: dict[int, int] = {}
    for storage, size in nbytes.items():
        sender = cut.ipus[maker[storage]]
        by_sender[sender] = by_sender.get(sender, 0) + size
    by_sender.pop(to, None)  # what comes from another stage of the same IPU is there already
    return [
        Transfer(
            sender=sender,
            receiver=to,
            backward=backward,
            nbytes=size,
            cycles=message_seconds(size, sender, to, target) * target.clock,
        )
        for sender, size in by_sender.items()
    ]


def _host_cycles(graph: OpGraph, part: OpGraph, num_results: int, target: IpuTarget) -> float:
    """What a stage takes from the host and gives to it, for one micro-batch."""
    given = {v for name, v in graph.inputs.items() if name.role is Role.ARGUMENT}
    results = {v for v in graph.outputs[:num_results] if v is not None}
    into = sum(graph.values[v].nbytes for v in part.inputs.values() if v in given)
    out = sum(graph.values[v].nbytes for v in part.outputs if v in results)
    seconds = sum(target.host_seconds + nbytes / target.host_bytes_per_second for nbytes in (into, out) if nbytes)
    return seconds * target.clock


def _state(part: OpGraph) -> list[int]:
    return [v for given, v in part.inputs.items() if given.role in (Role.PARAMETER, Role.BUFFER)]


def _stash(part: OpGraph, held: Set[int]) -> int:
    """Bytes that the backward pass of a stage reads of its forward pass; weights and constants are there anyway."""
    there = held | {part.values[v].storage for v in part.constants}
    before: set[int] = set()
    kept: dict[int, int] = {}
    for op in part.ops:
        if op.phase == "forward":
            before |= {part.values[v].storage for v in (*op.reads(), *op.makes())}
    for op in part.ops:
        if op.phase == "backward":
            for v in contents(op):
                value = part.values[v]
                if value.storage in before and value.storage not in there:
                    kept[value.storage] = max(kept.get(value.storage, 0), min(value.nbytes, value.end))
    return sum(kept.values())

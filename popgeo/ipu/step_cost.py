"""What a whole step needs: micro-batches, the update that follows them, and the host's transfers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value
from popgeo.capture.passes import fold_constants
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.collectives import plan_collective
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.plan import Activity, OpCost, Plan, Profile, Superstep, Validity
from popgeo.ipu.cost.splits import MEMORY_SHARE
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.measure_memory import memory
from popgeo.ipu.tiles.memory_use import MemoryUse

BESIDE = ("host", "accumulate")  # phases that have no place of their own between a micro-batch and the update


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What operations cost together; costs add up with `+`.

    Attributes:
        ops: How many run.
        flops: Floating-point operations, a multiply-accumulate counted as two.
        bytes: Bytes that they read and write, had each tensor its own memory.
        cycles: Of the slowest tile, one operation after the other.

    Example:
        >>> Cost(ops=1, cycles=10.0) + Cost(ops=2, cycles=5.0, flops=8)
        Cost(ops=3, flops=8, bytes=0, cycles=15.0)
    """

    ops: int = 0
    flops: int = 0
    bytes: int = 0
    cycles: float = 0.0

    @classmethod
    def of(cls, cost: OpCost, profile: Profile = Profile.CALIBRATED) -> "Cost":
        """All runs of one operation in a step."""
        n = cost.count
        return cls(ops=n, flops=n * cost.flops, bytes=n * cost.bytes, cycles=n * cost.plan.cycles(profile))

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(**{name: value + getattr(other, name) for name, value in vars(self).items()})


def total(costs: Iterable[OpCost], profile: Profile = Profile.CALIBRATED) -> Cost:
    """What operations cost together."""
    return sum((Cost.of(cost, profile) for cost in costs), Cost())


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """What a step needs on a machine.

    Attributes:
        costs: Every operation of a step, and each transfer of the host, in order.
        memory: Bytes of each tile; its curve goes over a micro-batch and the update.
        state_bytes: Of weights and buffers and, in training, of gradients and of the optimizer's state, as a replica
            keeps it.
    """

    costs: tuple[OpCost, ...]
    memory: MemoryUse
    state_bytes: int


def assess(
    step: CapturedStep,
    target: IpuTarget,
    update: OpGraph | None = None,
    *,
    micro_batches: int = 1,
    replicas: int = 1,
    sharded: frozenset[str] = frozenset(),
    matmul_proportion: float = MEMORY_SHARE,
    shards: int = 1,
    part_of_update: OpGraph | None = None,
) -> Assessment:
    """Costs and memory of one step; nothing runs.

    Args:
        step: The program of one micro-batch.
        target: The machine; of a model in shards that of one of them, whose program the step and the update are.
        update: The program of one update; None if nothing is trained.
        micro_batches: How many a replica takes before its update.
        replicas: How many add up their gradients.
        sharded: Names of the gradients that they do not add up, since each replica has a part of its own.
        matmul_proportion: Share of a tile's memory that a dense product may take while it runs.
        shards: How many such machines a replica is.
        part_of_update: What a replica updates of its weights, where each keeps a part of the optimizer's state: it
            gets its part of the gradients and gives the others its part of the weights.
    """
    graph = fold_constants(step.expanded.graph)
    into = list(graph.inputs_of(Role.ARGUMENT).values())
    out = [v for v in graph.outputs[: step.num_results] if v is not None]  # gradients stay on the machine
    transfers = _host(graph, into, "receive inputs", target), _host(graph, out, "send results", target)
    micro_batch = cost(graph, target, matmul_proportion=matmul_proportion)
    costs = [replace(c, count=micro_batches) for c in (*transfers[0], *micro_batch, *transfers[1])]
    runs = part_of_update or update
    updating = cost(runs, target) if runs is not None else ()
    if update is not None and micro_batches > 1:
        costs += [replace(c, count=micro_batches) for c in cost(accumulation(update), target)]
    shared = {} if update is None else {k: v for k, v in _gradients(update).items() if k.name not in sharded}
    if shared and replicas > 1:
        kinds = ("all-reduce",) if part_of_update is None else ("reduce-scatter", "all-gather")
        costs += [_over_replicas(kind, shared, replicas, shards, target) for kind in kinds]
    use = memory(
        graph,
        micro_batch,
        target,
        update=runs,
        update_costs=updating,
        num_results=step.num_results,
        accumulates=micro_batches * replicas > 1,
        gradient_parts=1 if part_of_update is None else replicas,
    )
    held = {v for given, v in graph.inputs.items() if given.role in (Role.PARAMETER, Role.BUFFER)}
    state = sum({graph.values[v].storage: graph.values[v].nbytes for v in held}.values())
    for made, role in ((update, Role.GRADIENT), (runs, Role.STATE)):
        if made is not None:
            state += sum(made.values[v].nbytes for v in made.inputs_of(role).values())
    return Assessment(costs=(*costs, *updating), memory=use, state_bytes=state)


def _gradients(update: OpGraph) -> dict[Input, Value]:
    """What an update applies, one tensor a group of parameters."""
    return {given: update.values[v] for given, v in update.inputs_of(Role.GRADIENT).items()}


def accumulation(update: OpGraph) -> OpGraph:
    """Adds the gradients of one micro-batch to the sums that the update takes."""
    values, inputs, ops = list[Value](), dict[Input, int](), list[Op]()
    for given, gradient in _gradients(update).items():
        total, made = len(values), len(values) + 1
        values += [replace(gradient, storage=number, producer=None) for number in (total, made)]
        inputs |= {given: total, Input(Role.ARGUMENT, given.name): made}
        both, out = (Ref(total), Ref(made)), (total,)
        ops.append(Op(target="aten.add_.Tensor", args=both, outputs=out, writes=out, phase="accumulate"))
    return OpGraph(ops=tuple(ops), values=tuple(values), inputs=inputs, outputs=())


def _over_replicas(
    kind: str, gradients: Mapping[Input, Value], replicas: int, stride: int, target: IpuTarget
) -> OpCost:
    """Every replica gets the sum of all gradients, or, where each keeps a part of the optimizer's state, its part."""
    nbytes = sum(value.nbytes for value in gradients.values())
    plan = plan_collective(kind, nbytes, replicas, stride, Machine(target=target))
    shapes = " ".join(str(list(value.shape)) for value in gradients.values())
    name = kind.replace("-", "_")
    return OpCost(target=f"collective.{name}.default", phase="accumulate", shapes=shapes, plan=plan)


def _host(graph: OpGraph, values: Sequence[int], name: str, target: IpuTarget) -> list[OpCost]:
    """One transfer between host and machine, if there is anything to move."""
    nbytes = sum(graph.values[v].nbytes for v in values)
    if not nbytes:
        return []
    cycles = (target.host_seconds + nbytes / target.host_bytes_per_second) * target.clock
    tiles = target.num_tiles * target.num_ipus
    share = -(-nbytes // tiles)
    step = Superstep(
        name=name, activity=Activity.HOST, ideal=cycles, calibrated=cycles, mean=cycles, tiles=tiles,
        bytes_in=share, bytes_total=nbytes,
    )  # fmt: skip
    plan = Plan(family="host", supersteps=(step,), validity=Validity.ESTIMATE, why="depends on the host")
    shapes = " ".join(str(list(graph.values[v].shape)) for v in values)
    return [OpCost(target=f"host.{name.split()[0]}.default", phase="host", shapes=shapes, plan=plan)]

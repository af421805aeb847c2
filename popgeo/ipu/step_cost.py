"""Costs of a step besides its operations: sums of gradients and transfers of the host. Also sums of costs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.collectives import plan_collective
from popgeo.ipu.cost.plan import Activity, OpCost, Plan, Profile, Validity
from popgeo.ipu.cost.supersteps import timed_step
from popgeo.ipu.target import IpuTarget

BESIDE = ("host", "accumulate")  # phases outside of the memory curve, which covers a micro-batch and the update


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of several operations together; costs add up with `+`.

    Attributes:
        ops: Number of operations that run.
        flops: Floating-point operations, a multiply-accumulate counted as two.
        bytes: Bytes read and written, as if each tensor had its own memory.
        cycles: Cycles of the slowest tile, one operation after the other.

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
        """Return the cost of all runs of one operation in a step."""
        n = cost.count
        return cls(ops=n, flops=n * cost.flops, bytes=n * cost.bytes, cycles=n * cost.plan.cycles(profile))

    def __add__(self, other: "Cost") -> "Cost":
        """Return the sum of two costs."""
        return Cost(**{name: value + getattr(other, name) for name, value in vars(self).items()})


def total(costs: Iterable[OpCost], profile: Profile = Profile.CALIBRATED) -> Cost:
    """Return the cost of several operations together."""
    return sum((Cost.of(cost, profile) for cost in costs), Cost())


def gradients_of(update: OpGraph) -> dict[Input, Value]:
    """Return the gradients that an update applies, one tensor per group of parameters."""
    return {given: update.values[v] for given, v in update.inputs_of(Role.GRADIENT).items()}


def accumulation(update: OpGraph) -> OpGraph:
    """Return a graph that adds the gradients of one micro-batch to the sums that the update takes."""
    values, inputs, ops = list[Value](), dict[Input, int](), list[Op]()
    for given, gradient in gradients_of(update).items():
        total, made = len(values), len(values) + 1
        values += [replace(gradient, storage=number, producer=None) for number in (total, made)]
        inputs |= {given: total, Input(Role.ARGUMENT, given.name): made}
        both, out = (Ref(total), Ref(made)), (total,)
        ops.append(Op(target="aten.add_.Tensor", args=both, outputs=out, writes=out, phase="accumulate"))
    return OpGraph(ops=tuple(ops), values=tuple(values), inputs=inputs, outputs=())


def over_replicas(kind: str, gradients: Mapping[Input, Value], replicas: int, stride: int, target: IpuTarget) -> OpCost:
    """Return the cost of a collective over the replicas of a step, for the given gradients.

    Args:
        kind: `all-reduce`, if every replica gets the sum of all gradients; `reduce-scatter` or `all-gather`, if each
            replica keeps a part of the optimizer's state.
        gradients: The gradients of one replica.
        replicas: Number of replicas.
        stride: Number of IPUs from one replica to the next.
        target: The machine of one replica.
    """
    nbytes = sum(value.nbytes for value in gradients.values())
    plan = plan_collective(kind, nbytes, replicas, stride, Machine(target=target))
    shapes = " ".join(str(list(value.shape)) for value in gradients.values())
    name = kind.replace("-", "_")
    return OpCost(target=f"collective.{name}.default", phase="accumulate", shapes=shapes, plan=plan)


def host_transfer(graph: OpGraph, values: Sequence[int], name: str, target: IpuTarget) -> list[OpCost]:
    """Return the cost of one transfer between host and machine; nothing if there are no bytes to move."""
    nbytes = sum(graph.values[v].nbytes for v in values)
    if not nbytes:
        return []
    cycles = (target.host_seconds + nbytes / target.host_bytes_per_second) * target.clock
    step = timed_step(name, Activity.HOST, cycles, nbytes=nbytes, tiles=target.all_tiles)
    plan = Plan(family="host", supersteps=(step,), validity=Validity.ESTIMATE, why="depends on the host")
    shapes = " ".join(str(list(graph.values[v].shape)) for v in values)
    return [OpCost(target=f"host.{name.split()[0]}.default", phase="host", shapes=shapes, plan=plan)]

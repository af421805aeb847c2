"""Plans of collectives between shards and replicas on several IPUs, over links of a board and between boards.

An all-reduce sends one share of the tensor at a time twice around a ring: once to sum, once to distribute the sums. A
reduce-scatter is its first half, an all-gather its second (Thakur et al., "Optimization of Collective Communication
Operations in MPICH", 2005). The slowest link of the ring sets the pace. Sums on the tiles take no further time:
1,472 tiles add far faster than links transfer.
"""

from dataclasses import replace

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.capture.operations import name_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.links import link_rate, ring_seconds
from popgeo.ipu.cost.movement import plan_copy
from popgeo.ipu.cost.operands import made, tensor, width
from popgeo.ipu.cost.plan import Activity, Plan
from popgeo.ipu.cost.supersteps import in_sequence, timed_step
from popgeo.ipu.target import IpuTarget

TURNS = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1}  # times around the ring
_WHY = "links at their full rate; no published measurement of a collective alone"


def collective_seconds(kind: str, nbytes: float, members: int, stride: int, target: IpuTarget) -> float:
    """Return the seconds of a collective on a ring over the links of a pod, as in Graphcore's library of collectives.

    Args:
        kind: A key of `TURNS`.
        nbytes: Bytes of the whole tensor: the result of an all-gather, or a member's argument of a reduce-scatter.
        members: Number of IPUs that take part.
        stride: Number of IPUs from one member to the next.
        target: One IPU.

    Example:
        >>> seconds = collective_seconds("all-reduce", 220e6, members=4, stride=1, target=IpuTarget.bow())
        >>> f"{1e3 * seconds:.2f} ms"  # 2 x 3 turns of 55 MB at 55 GB/s
        '6.00 ms'
    """
    return ring_seconds(nbytes, range(0, members * stride, stride), target, rounds=TURNS[kind])


def plan_collective(kind: str, nbytes: int, members: int, stride: int, machine: Machine) -> Plan:
    """Plan a collective over members that each span all IPUs of the machine and hold a part of the tensor on each.

    Args:
        kind: A key of `TURNS`.
        nbytes: Bytes of the whole tensor.
        members: Number of members.
        stride: Number of members from one to the next.
        machine: The machine of one member.

    Example:
        >>> plan_collective("all-gather", 1 << 20, 4, 1, Machine(target=IpuTarget.bow())).split
        {'IPUs': 4}
    """
    target = machine.target
    lanes = target.num_ipus
    seconds = collective_seconds(kind, nbytes / lanes, members, stride * lanes, target)
    moved = TURNS[kind] * (members - 1) * nbytes // members
    return _over_links(kind, members, seconds * target.clock, moved, machine)


def _over_links(name: str, members: int, cycles: float, nbytes: int, machine: Machine) -> Plan:
    """Return the plan of one exchange over links, from its cycles and bytes."""
    step = timed_step(name, Activity.EXCHANGE, cycles, nbytes=nbytes, tiles=machine.num_tiles)
    split = {"IPUs": members * machine.target.num_ipus}
    return Plan(family="collectives", split=split, supersteps=(step,), temporary_bytes=step.bytes_in, why=_WHY)


def _members(num_shards: int, held: int, machine: Machine) -> tuple[int, int, Machine]:
    """Return the number of members that share the work, the shards that each holds, and the machine of each.

    A program that holds several shards on several IPUs has equally many on each IPU.
    """
    ipus = machine.target.num_ipus
    within = min(held, ipus) if max(held, ipus) % min(held, ipus) == 0 else 1
    member = replace(machine, target=replace(machine.target, num_ipus=ipus // within))
    return num_shards // held * within, held // within, member


def rule_all_reduce(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan an all-reduce or reduce-scatter; the tiles of an IPU add its own shards before links carry the sums."""
    x, kind = tensor(graph, op.args[0]), name_of(op.target).removeprefix("popgeo.").replace("_", "-")
    shards = x.shape[0]
    members, held, member = _members(op.args[1], shards, machine)
    plans = [plan_elementwise("add", max(1, x.numel // shards), width(x), member)] * (held - 1)
    return _joined(plans, kind, x.nbytes // shards, members, op.args[-1], member)


def rule_all_gather(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan an all-gather, and the copy that arranges the shards."""
    x, result = tensor(graph, op.args[0]), made(graph, op)[0]
    members, _, member = _members(op.args[1], x.shape[0], machine)
    laid_out = plan_copy(max(1, result.numel), width(x), member, pieces=op.args[1])
    return _joined([laid_out], "all-gather", result.nbytes, members, op.args[-1], member)


def _joined(plans: list[Plan], kind: str, nbytes: int, members: int, stride: int, member: Machine) -> Plan:
    """Plan the work inside each IPU, then the collective over links if several IPUs take part."""
    if members > 1:
        plans = [*plans, plan_collective(kind, nbytes, members, stride, member)]
    elif not plans:
        return Plan(family="collectives", why="a single shard has no partner")
    return in_sequence("collectives", *plans, main=len(plans) - 1)


def rule_keep(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a tensor that is already on each IPU; each of several shards on one IPU gets a copy, or its part."""
    result = made(graph, op)[0]
    _, held, member = _members(op.args[1], result.shape[0], machine)
    elements = result.numel // result.shape[0] * held
    if elements == tensor(graph, op.args[0]).numel:
        return Plan(family="collectives", why="taken to cost nothing")
    return in_sequence("collectives", plan_copy(max(1, elements), width(result), member))


def rule_all_to_all(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan an all-to-all: every IPU sends each other IPU its part over links, all at the same time."""
    value = made(graph, op)[0]
    members, held, member = _members(op.args[1], value.shape[0], machine)
    own = value.nbytes // value.shape[0] * held
    if members == 1:
        return in_sequence("collectives", plan_copy(max(1, value.numel), width(value), member))
    target, sent = member.target, own * (members - 1) // members
    ends = range(0, members * target.num_ipus, target.num_ipus)
    rate = min(link_rate(0, other, target) for other in ends[1:]) * target.num_ipus
    cycles = (target.link_seconds * (members - 1) + sent / rate) * target.clock
    return _over_links("all-to-all", members, cycles, sent, member)

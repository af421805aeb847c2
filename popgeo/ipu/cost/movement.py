"""Plans of operations that rearrange elements, create tensors, or return views of memory."""

import functools

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import spread
from popgeo.ipu.cost.operands import made, read, tensor, width
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.cost.scatter import fill_step
from popgeo.ipu.cost.supersteps import compute_step, exchange_step


@functools.lru_cache(maxsize=4096)
def plan_copy(elements: int, width: int, machine: Machine, pieces: int = 1) -> Plan:
    """Plan a copy that moves elements between tiles and arranges them in order.

    Args:
        elements: Number of elements.
        width: Bytes of an element.
        machine: The machine and its constants.
        pieces: Number of tensors that the elements come from.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> plan_copy(1472 * 100, 4, Machine(target=IpuTarget.bow())).cycles("ideal")
        780.0
    """
    target = machine.target
    most, tiles = spread(elements, width, machine.num_tiles)
    nbytes = most * width
    steps = (
        exchange_step(
            "move elements", target, bytes_in=nbytes, bytes_out=nbytes, tiles=tiles, fragments=pieces, is_irregular=True
        ),
        compute_step(
            "copy", target, vertex=target.copy_cycles + nbytes / target.copy_bytes, tiles=tiles,
            evenness=elements / (tiles * most),
        ),
    )  # fmt: skip
    return Plan.in_order("movement", tiles, steps, "no published measurement of a copy", nbytes=nbytes)


def rule_movement(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the copy of all results of an operation."""
    values = made(graph, op) or [graph.values[v] for v in op.writes]
    return plan_copy(
        max(1, sum(value.numel for value in values)), width(values[0]), machine, max(1, len(read(graph, op)))
    )


def rule_copy_part(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a write into a part of a tensor; the other elements stay, or are zero."""
    result = made(graph, op)[0]
    return plan_copy(max(1, result.numel), width(tensor(graph, op.args[0])), machine, pieces=2)


def rule_fill(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan to fill tensors with a number."""
    values = made(graph, op) or [tensor(graph, op.args[0])]
    step = fill_step(sum(value.numel for value in values), width(values[0]), machine.target)
    return Plan.in_order("movement", step.tiles, [step], "no published measurement of a fill")


def rule_view(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a view, which takes no step."""
    return Plan(family="view", why="taken to cost nothing")

"""Plans of losses that are one operation of torch."""

import math

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.capture.operations import operation_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise, spread
from popgeo.ipu.cost.gather import INDEX_BYTES
from popgeo.ipu.cost.operands import made, tensor, width
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.cost.reduce import plan_reduce
from popgeo.ipu.cost.scatter import fill_step
from popgeo.ipu.cost.supersteps import compute_step, exchange_step, in_sequence
from popgeo.ipu.cost.vertex_cycles import ceil_div


def rule_losses(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the passes over all elements, forward or backward, and their sum if the loss has one."""
    value, result = tensor(graph, op.args[0]), made(graph, op)[0]
    elements, nbytes = max(1, value.numel, result.numel), width(result)
    plans = [plan_elementwise(kind, elements, nbytes, machine) for kind in operation_of(op.target).passes]
    if result.numel == 1 < elements:
        plans.append(plan_reduce(1, elements, nbytes, machine))
    return in_sequence("losses", *plans)


# Cycles of a tile for each target that it marks (`popops::EncodeOneHot`).
_MARK_CYCLES = 100


def rule_nll(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a negative log likelihood as PopART does: mark each target with a one, multiply by the marks, add up."""
    value, target = tensor(graph, op.args[0]), tensor(graph, op.args[1])
    rows, nbytes = max(1, target.numel), width(value)
    elements = max(1, value.numel)
    return in_sequence(
        "losses",
        _marks(rows, elements, nbytes, machine),
        plan_elementwise("multiply", elements, nbytes, machine),
        plan_reduce(rows, max(1, elements // rows), nbytes, machine, is_inner=True),
        plan_reduce(1, rows, nbytes, machine),
    )


def rule_nll_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan its gradient: mark each target with a one, then multiply by minus the loss's gradient, in place."""
    result, target = made(graph, op)[0], tensor(graph, op.args[2])
    elements, nbytes = max(1, result.numel), width(result)
    return in_sequence(
        "losses",
        _marks(max(1, math.prod(target.shape)), elements, nbytes, machine),
        plan_elementwise("negate", elements, nbytes, machine),
        plan_elementwise("multiply", elements, nbytes, machine),
    )


def _marks(rows: int, elements: int, width: int, machine: Machine) -> Plan:
    """Plan a tensor of zeros with a one in each row; every tile with a part of a row looks at its target."""
    most, tiles = spread(elements, width, machine.num_tiles)
    mine = min(rows, ceil_div(most * rows, elements) + 1)  # a tile's part may begin and end within a row
    nbytes, target = mine * INDEX_BYTES, machine.target
    steps = (
        fill_step(elements, width, target),
        exchange_step("bring targets", target, bytes_in=nbytes, bytes_out=nbytes, tiles=tiles),
        compute_step("mark targets", target, vertex=_MARK_CYCLES * mine, tiles=tiles, workers=1),
    )
    nbytes += most * width
    return Plan.in_order("losses", tiles, steps, "no published measurement of one-hot codes", nbytes=nbytes)

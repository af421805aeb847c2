"""Dense products of a layer whose outputs are computed in parts, one after the other, to need less memory at a time."""

import math
from dataclasses import replace

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.capture.operations import name_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.matmul import left_and_right, plan_matmul, sizes_of, width_of
from popgeo.ipu.cost.operands import width
from popgeo.ipu.cost.plan import Plan, Superstep
from popgeo.ipu.cost.supersteps import repeated


def serialized(graph: OpGraph, op: Op, machine: Machine, outputs: int, parts: int) -> Plan | None:
    """A product of a layer's forward or backward pass, computed for a part of the layer's outputs at a time.

    As PopTorch's `serializedMatMul` over output channels: the product of the forward pass makes its columns in parts,
    that of the weights' gradient its rows, and that of the inputs' gradient adds up a product of each part.

    Args:
        graph: The program that the operation is part of.
        op: The operation.
        machine: What to plan for.
        outputs: Of the layer, so that the dimension that is cut is known.
        parts: How many.

    Returns:
        The plan; None where the operation is no dense product over the layer's outputs.
    """
    if name_of(op.target) not in ("aten.mm", "aten.matmul", "aten.addmm", "aten.linear"):
        return None
    rows, contraction, columns, batch = sizes_of(graph, op)
    sizes = [rows * batch, contraction, columns]
    if outputs not in sizes:
        return None
    flops, cut = 2 * math.prod(sizes), sizes.index(outputs)
    sizes[cut] = -(-outputs // parts)
    once = plan_matmul(*sizes, width_of(graph, op), machine)
    steps = [_again(step, parts) for step in once.supersteps]
    if cut == 1:
        adding = plan_elementwise("add", sizes[0] * sizes[2], width(left_and_right(graph, op)[0]), machine)
        steps += [_again(step, parts - 1) for step in adding.supersteps]
    split = {**once.split, "serial": parts * once.split["serial"]}
    return replace(once, supersteps=tuple(steps), split=split, flops=flops)


def _again(step: Superstep, times: int) -> Superstep:
    """A superstep that runs `times` times, as `repeated`, each time with exchange code of its own."""
    return replace(repeated(step, times), fragments=times * step.fragments)

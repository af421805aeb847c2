"""Dense products of a layer whose outputs are computed in parts, one after the other, to need less memory at a time."""

import math
from dataclasses import replace

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.capture.operations import name_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.matmul import plan_matmul
from popgeo.ipu.cost.operands import tensor, width
from popgeo.ipu.cost.plan import Plan, Superstep

_LEFT_AND_RIGHT = {"aten.mm": (0, 1), "aten.matmul": (0, 1), "aten.addmm": (1, 2), "aten.linear": (0, 1)}


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
    places = _LEFT_AND_RIGHT.get(name_of(op.target))
    if places is None:
        return None
    left, right = (tensor(graph, op.args[place]) for place in places)
    contraction = left.shape[-1]
    columns = right.shape[0] if name_of(op.target) == "aten.linear" else right.shape[-1]
    sizes = [math.prod(left.shape[:-1]), contraction, columns]
    if outputs not in sizes:
        return None
    cut = sizes.index(outputs)
    sizes[cut] = -(-outputs // parts)
    once = plan_matmul(*sizes, 2 if left.dtype.itemsize == 2 else 4, machine)
    steps = [_again(step, parts) for step in once.supersteps]
    if cut == 1:
        adding = plan_elementwise("add", sizes[0] * sizes[2], width(left), machine)
        steps += [_again(step, parts - 1) for step in adding.supersteps]
    split = {**once.split, "serial": parts * once.split["serial"]}
    return replace(once, supersteps=tuple(steps), split=split, flops=2 * left.numel * columns)


def _again(step: Superstep, times: int) -> Superstep:
    """So many of a step, one after the other, as one."""
    return replace(
        step,
        ideal=times * step.ideal,
        calibrated=times * step.calibrated,
        mean=times * step.mean,
        bytes_in=times * step.bytes_in,
        bytes_out=times * step.bytes_out,
        bytes_total=times * step.bytes_total,
        fragments=times * step.fragments,
    )

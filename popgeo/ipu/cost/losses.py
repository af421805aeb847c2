"""Losses that torch keeps as one operation."""

import math

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.gather import plan_gather
from popgeo.ipu.cost.operands import Rule, made, tensor, width
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.cost.reduce import plan_reduce
from popgeo.ipu.cost.scatter import plan_scatter_add
from popgeo.ipu.cost.supersteps import in_sequence

_BY_ELEMENT = {
    "binary_cross_entropy": ("log", "log", "add product"),
    "binary_cross_entropy_with_logits": ("abs", "negate", "exp", "log1p", "maximum", "add", "add product"),
    "l1_loss": ("subtract", "abs"),
    "mse_loss": ("subtract", "square"),
    "smooth_l1_loss": ("subtract", "maximum", "square"),
    "huber_loss": ("subtract", "maximum", "square"),
    "kl_div": ("log", "add product"),
}
_BACKWARD = {
    "binary_cross_entropy_backward": ("divide", "add product"),
    "mse_loss_backward": ("add product",),
    "smooth_l1_loss_backward": ("subtract", "maximum", "multiply"),
    "huber_loss_backward": ("subtract", "maximum", "multiply"),
}


def _by_element(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    value, result = tensor(graph, op.args[0]), made(graph, op)[0]
    elements = max(1, value.numel)
    plans = [plan_elementwise(kind, elements, width(value), machine) for kind in _BY_ELEMENT[op.target.split(".")[1]]]
    if result.numel < value.numel:
        plans.append(plan_reduce(max(1, result.numel), elements, width(value), machine, is_inner=True))
    return in_sequence("losses", plans)


def _backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    result = made(graph, op)[0]
    elements, kinds = max(1, result.numel), _BACKWARD[op.target.split(".")[1]]
    return in_sequence("losses", [plan_elementwise(kind, elements, width(result), machine) for kind in kinds])


def _nll_loss(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Picks the target's entry of each row, and adds them up."""
    value, target = tensor(graph, op.args[0]), tensor(graph, op.args[1])
    rows = max(1, target.numel)
    picked = plan_gather(max(1, value.numel), 1, rows, width(value), machine)
    return in_sequence("losses", [picked, plan_reduce(1, rows, width(value), machine, is_inner=True)])


def _nll_loss_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    result, target = made(graph, op)[0], tensor(graph, op.args[2])
    rows = max(1, math.prod(target.shape))
    return in_sequence(
        "losses", [plan_scatter_add(max(1, result.numel), 1, rows, width(result), machine, makes_table=True)]
    )


RULES: dict[str, Rule] = {
    **{f"aten.{name}": _by_element for name in _BY_ELEMENT},
    **{f"aten.{name}": _backward for name in _BACKWARD},
    "aten.nll_loss_forward": _nll_loss,
    "aten.nll_loss2d_forward": _nll_loss,
    "aten.nll_loss_backward": _nll_loss_backward,
    "aten.nll_loss2d_backward": _nll_loss_backward,
}

"""Softmax and normalisation: reductions between passes over all elements."""

import math
from collections.abc import Sequence

from popgeo.capture.op_graph import Op, OpGraph, Value
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.operands import Rule, tensor, width
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.cost.reduce import plan_reduce
from popgeo.ipu.cost.supersteps import in_sequence

REDUCE = "reduce"
SOFTMAX = (REDUCE, "subtract", "exp", REDUCE, "divide")


def plan_groups(
    steps: Sequence[str], groups: int, elements: int, width: int, machine: Machine, is_inner: bool = True
) -> Plan:
    """Passes over all elements and reductions of each group, in order; a pass after a reduction reads its result.

    Args:
        steps: What to do: `REDUCE`, or a pass of `popgeo.ipu.cost.loops.LOOP_OF`.
        groups: Sets of elements that are reduced by themselves.
        elements: Elements of all groups.
        width: Bytes of each.
        machine: What to plan for.
        is_inner: The elements of a group lie next to each other.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> plan_groups(SOFTMAX, 1024, 1024 * 64, 4, Machine(target=IpuTarget.bow())).family
        'norms'
    """
    plans: list[Plan] = []
    operand = 0
    for step in steps:
        if step == REDUCE:
            plans.append(plan_reduce(groups, max(1, elements // groups), width, machine, is_inner))
            operand = groups
        else:
            plans.append(plan_elementwise(step, elements, width, machine, operand))
            operand = 0
    return in_sequence("norms", plans)


def _over_last(value: Value, steps: Sequence[str], groups: int, machine: Machine, is_inner: bool = True) -> Plan:
    return plan_groups(steps, groups, max(1, value.numel), width(value), machine, is_inner)


def _softmax(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    value, dim = tensor(graph, op.args[0]), op.args[1]
    size = value.shape[dim] if value.shape else 1
    steps = {
        "_softmax": SOFTMAX,
        "_safe_softmax": SOFTMAX,
        "_log_softmax": (REDUCE, "subtract", "exp", REDUCE, "log", "subtract"),
    }[op.target.split(".")[1]]
    return _over_last(value, steps, max(1, value.numel // max(1, size)), machine)


def _softmax_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    value, dim = tensor(graph, op.args[0]), op.args[2]
    size = value.shape[dim] if value.shape else 1
    steps = {
        "_softmax_backward_data": ("multiply", REDUCE, "add product"),
        "_log_softmax_backward_data": (REDUCE, "exp", "add product"),
    }[op.target.split(".")[1]]
    return _over_last(value, steps, max(1, value.numel // max(1, size)), machine)


def _layer_norm(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    value = tensor(graph, op.args[0])
    groups = max(1, value.numel // max(1, math.prod(op.args[1])))
    return _over_last(value, (REDUCE, "subtract", "square", REDUCE, "multiply", "add product"), groups, machine)


def _layer_norm_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Two sums per group for the input's gradient, and one per feature for each of weight and bias."""
    value = tensor(graph, op.args[0])
    features = max(1, math.prod(op.args[2]))
    groups = max(1, value.numel // features)
    inner = _over_last(value, ("multiply", REDUCE, "multiply", REDUCE, "add product", "add product"), groups, machine)
    outer = _over_last(value, ("multiply", REDUCE, REDUCE), features, machine, is_inner=False)
    return in_sequence("norms", [inner, outer])


def _batch_norm(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    value = tensor(graph, op.args[0])
    channels = value.shape[1] if len(value.shape) > 1 else 1
    steps = (REDUCE, "subtract", "square", REDUCE, "multiply", "add product")
    return _over_last(value, steps, max(1, channels), machine, is_inner=False)


def _batch_norm_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    value = tensor(graph, op.args[0])
    channels = value.shape[1] if len(value.shape) > 1 else 1
    steps = ("add product", REDUCE, REDUCE, "add product", "add product")
    return _over_last(value, steps, max(1, channels), machine, is_inner=False)


RULES: dict[str, Rule] = {
    "aten._softmax": _softmax,
    "aten._safe_softmax": _softmax,
    "aten._log_softmax": _softmax,
    "aten._softmax_backward_data": _softmax_backward,
    "aten._log_softmax_backward_data": _softmax_backward,
    "aten.native_layer_norm": _layer_norm,
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "aten.native_batch_norm": _batch_norm,
    "aten._native_batch_norm_legit": _batch_norm,
    "aten._native_batch_norm_legit_functional": _batch_norm,
    "aten._batch_norm_with_update": _batch_norm,
    "aten.cudnn_batch_norm": _batch_norm,
    "aten.native_batch_norm_backward": _batch_norm_backward,
    "aten.batch_norm_backward": _batch_norm_backward,
}

"""Softmax and normalisation: reductions between passes over all elements."""

import math
from collections.abc import Sequence

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.operands import Rule, tensor, width
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.cost.reduce import plan_reduce
from popgeo.ipu.cost.supersteps import in_sequence

REDUCE = "reduce"
# Passes over the results of a reduction, of which there are few.
_OF_SUMS = {"inverse of sums": "inverse", "log of sums": "log", "inverse deviations": "rsqrt"}
# `popnn::nonLinearity` and `popnn::logSoftmax`: the sums are inverted rather than all elements divided.
SOFTMAX = (REDUCE, "subtract", "exp", REDUCE, "inverse of sums", "multiply")
_LOG_SOFTMAX = (REDUCE, "subtract", "exp", REDUCE, "log of sums", "subtract")
_WHITEN = ("subtract", "multiply")


def plan_groups(
    steps: Sequence[str], groups: int, elements: int, width: int, machine: Machine, is_inner: bool = True
) -> Plan:
    """Passes over all elements and reductions of each group, in order; a pass after a reduction reads its result.

    The first pass makes a tensor, and the others work on it in place.

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
    operand, in_place = 0, False
    for step in steps:
        if step == REDUCE:
            plans.append(plan_reduce(groups, max(1, elements // groups), width, machine, is_inner))
            operand = groups
        elif step in _OF_SUMS:
            plans.append(plan_elementwise(_OF_SUMS[step], groups, width, machine, name=step))
        else:
            plans.append(plan_elementwise(step, elements, width, machine, operand, in_place=in_place))
            operand, in_place = 0, True
    return in_sequence("norms", plans)


def _over_last(value: Value, steps: Sequence[str], groups: int, machine: Machine, is_inner: bool = True) -> Plan:
    return plan_groups(steps, groups, max(1, value.numel), width(value), machine, is_inner)


def _softmax(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    value, dim = tensor(graph, op.args[0]), op.args[1]
    size = value.shape[dim] if value.shape else 1
    steps = _LOG_SOFTMAX if op.target.startswith("aten._log_softmax") else SOFTMAX
    return _over_last(value, steps, max(1, value.numel // max(1, size)), machine)


def _softmax_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """With y the output and g its gradient, y * g - y * sum(y * g), and for logarithms g - exp(y) * sum(g)."""
    value, dim = tensor(graph, op.args[0]), op.args[2]
    size = value.shape[dim] if value.shape else 1
    steps = {
        "_softmax_backward_data": ("multiply", REDUCE, "multiply", "subtract"),
        "_log_softmax_backward_data": ("exp", REDUCE, "multiply", "subtract"),
    }[op.target.split(".")[1]]
    return _over_last(value, steps, max(1, value.numel // max(1, size)), machine)


def _layer_norm(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """`popnn::gn`: sums and sums of squares, whitening, then weight and bias, where there are any."""
    value = tensor(graph, op.args[0])
    features = max(1, math.prod(op.args[1]))
    steps = (REDUCE, REDUCE, "inverse deviations", *_WHITEN)
    plans = [_over_last(value, steps, max(1, value.numel // features), machine)]
    plans += [
        _by_feature(kind, value, features, machine)
        for kind, given in zip(("multiply", "add"), op.args[2:4], strict=True)
        if isinstance(given, Ref)
    ]
    return in_sequence("norms", plans)


def _layer_norm_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    value = tensor(graph, op.args[0])
    features = max(1, math.prod(op.args[2]))
    groups = max(1, value.numel // features)
    return _norm_backward(value, groups, features, op, isinstance(op.args[5], Ref), machine)


def _norm_backward(value: Value, groups: int, features: int, op: Op, has_weight: bool, machine: Machine) -> Plan:
    """Whitens anew; two sums per group for the input's gradient, and one per feature for each of weight and bias."""
    plans = [_over_last(value, _WHITEN, groups, machine)]
    if has_weight:
        plans.append(_by_feature("multiply", value, features, machine))
    steps = ("multiply", REDUCE, REDUCE, "multiply", "add", "add", "multiply")
    plans.append(_over_last(value, steps, groups, machine))
    if len(op.outputs) > 1 and any(v is not None for v in op.outputs[1:]):
        plans.append(_over_last(value, ("multiply", REDUCE, REDUCE), features, machine, is_inner=False))
    return in_sequence("norms", plans)


def _group_norm(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """aten.native_group_norm(input, weight, bias, N, C, HxW, group, eps), the same with groups of channels."""
    value, (samples, channels, _, groups) = tensor(graph, op.args[0]), op.args[3:7]
    steps = (REDUCE, REDUCE, "inverse deviations", *_WHITEN)
    plans = [_over_last(value, steps, max(1, samples * groups), machine)]
    plans += [
        _by_feature(kind, value, max(1, channels), machine)
        for kind, given in zip(("multiply", "add"), op.args[1:3], strict=True)
        if isinstance(given, Ref)
    ]
    return in_sequence("norms", plans)


def _group_norm_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """aten.native_group_norm_backward(grad, input, mean, rstd, weight, N, C, HxW, group, mask)."""
    value, (samples, channels, _, groups) = tensor(graph, op.args[0]), op.args[5:9]
    return _norm_backward(value, max(1, samples * groups), max(1, channels), op, isinstance(op.args[4], Ref), machine)


def _by_feature(kind: str, value: Value, features: int, machine: Machine) -> Plan:
    """Adds or multiplies, in place, by a row that is the same for all rows."""
    return plan_elementwise(kind, max(1, value.numel), width(value), machine, operand=features, in_place=True)


def _batch_norm(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """`popnn::bn`, which does for each channel what a layer norm does for each row."""
    value = tensor(graph, op.args[0])
    channels = value.shape[1] if len(value.shape) > 1 else 1
    steps = (REDUCE, REDUCE, "inverse deviations", *_WHITEN, "multiply", "add")
    return _over_last(value, steps, max(1, channels), machine, is_inner=False)


def _batch_norm_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """The sums for the input's gradient are, but for a factor, those for weight and bias."""
    value = tensor(graph, op.args[0])
    channels = value.shape[1] if len(value.shape) > 1 else 1
    steps = (*_WHITEN, "multiply", "multiply", REDUCE, REDUCE, "multiply", "add", "add", "multiply")
    return _over_last(value, steps, max(1, channels), machine, is_inner=False)


RULES: dict[str, Rule] = {
    "aten._softmax": _softmax,
    "aten._safe_softmax": _softmax,
    "aten._log_softmax": _softmax,
    "aten._softmax_backward_data": _softmax_backward,
    "aten._log_softmax_backward_data": _softmax_backward,
    "aten.native_layer_norm": _layer_norm,
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "aten.native_group_norm": _group_norm,
    "aten.native_group_norm_backward": _group_norm_backward,
    "aten.native_batch_norm": _batch_norm,
    "aten._native_batch_norm_legit": _batch_norm,
    "aten._native_batch_norm_legit_functional": _batch_norm,
    "aten._batch_norm_with_update": _batch_norm,
    "aten.cudnn_batch_norm": _batch_norm,
    "aten.native_batch_norm_backward": _batch_norm_backward,
    "aten.batch_norm_backward": _batch_norm_backward,
}

"""Plans of softmax and normalisation: reductions between passes over all elements."""

import math
from collections.abc import Sequence

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value
from popgeo.capture.operations import operation_of
from popgeo.capture.schemas import argument_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.operands import tensor, width
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.cost.reduce import plan_reduce
from popgeo.ipu.cost.supersteps import in_sequence

REDUCE = "reduce"
BY_GROUP = " by group"  # end of the name of a pass with one number per group, which is sent to the tiles
# Passes over the few results of a reduction.
OF_SUMS = {"inverse of sums": "inverse", "log of sums": "log", "inverse deviations": "rsqrt"}
SOFTMAX = operation_of("aten._softmax.default").passes
"""The passes of a softmax, as in `popnn::nonLinearity`: the sums are inverted, so no element is divided."""
_WHITEN = ("subtract by group", "multiply by group")  # mean and inverse deviation: `poplin::normWhiten`
# Two sums of each group; the whitened elements times one sum, plus the gradient, plus the other sum, all times the
# inverse deviation.
_SUMS_AND_GRADIENT = (REDUCE, REDUCE, "multiply by group", "add", "add by group", "multiply by group")
_NORM = (REDUCE, REDUCE, "inverse deviations", *_WHITEN)


def plan_groups(
    steps: Sequence[str], groups: int, elements: int, width: int, machine: Machine, is_inner: bool = True
) -> Plan:
    """Plan passes over all elements and reductions of each group, in order.

    Args:
        steps: Names of the steps: `REDUCE`, or a pass of `popgeo.ipu.cost.loops.LOOP_OF`; `multiply by group`
            multiplies by one number per group.
        groups: Number of sets of elements that are reduced separately.
        elements: Number of elements of all groups together.
        width: Bytes of an element.
        machine: The machine and its constants.
        is_inner: Whether the elements of a group are next to each other.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> plan_groups(SOFTMAX, 1024, 1024 * 64, 4, Machine(target=IpuTarget.bow())).family
        'norms'
    """
    plans: list[Plan] = []
    for step in steps:
        if step == REDUCE:
            plans.append(plan_reduce(groups, elements // groups, width, machine, is_inner))
        elif step in OF_SUMS:
            plans.append(plan_elementwise(OF_SUMS[step], groups, width, machine, name=step))
        else:
            kind, operand = step.removesuffix(BY_GROUP), groups if step.endswith(BY_GROUP) else 0
            plans.append(plan_elementwise(kind, elements, width, machine, operand))
    return in_sequence("norms", *plans)


def _over_last(value: Value, steps: Sequence[str], groups: int, machine: Machine, is_inner: bool = True) -> Plan:
    """Plan passes and reductions over the groups of a value."""
    return plan_groups(steps, groups, max(1, value.numel), width(value), machine, is_inner)


def rule_softmax(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the passes that the table of operations names, over slices along a dimension.

    With y the output and g its gradient, the backward pass is y * g - y * sum(y * g), and for logarithms g - exp(y) *
    sum(g).
    """
    value, dim = tensor(graph, op.args[0]), argument_of(op, "dim")
    size = value.shape[dim] if value.shape else value.numel
    groups = max(1, value.numel // max(1, size))
    return _over_last(value, operation_of(op.target).passes, groups, machine)


def rule_layer_norm(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan `popnn::gn` for each row."""
    value, features = tensor(graph, op.args[0]), max(1, math.prod(op.args[1]))
    return _norm(value, max(1, value.numel // features), features, op.args[2:4], machine)


def _norm(value: Value, groups: int, features: int, affine: Sequence[object], machine: Machine) -> Plan:
    """Plan sums and sums of squares, whitening, then weight and bias if they are tensors."""
    plans = [_over_last(value, _NORM, groups, machine)]
    for kind, given in zip(("multiply", "add"), affine, strict=True):
        if isinstance(given, Ref):
            plans.append(_by_feature(kind, value, features, machine))
    return in_sequence("norms", *plans)


def rule_layer_norm_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the gradients of a layer norm."""
    grad = tensor(graph, op.args[0])
    features = max(1, math.prod(op.args[2]))
    groups = max(1, grad.numel // features)
    return _norm_backward(grad, groups, features, op, isinstance(op.args[5], Ref), machine)


def _norm_backward(value: Value, groups: int, features: int, op: Op, has_weight: bool, machine: Machine) -> Plan:
    """Plan the gradients of a norm of groups.

    The pass whitens again. Two sums per group give the input's gradient, and one sum per feature gives the gradient of
    weight or bias. With x the whitened input, g its gradient, n the elements of a group and d its inverse deviation,
    the input's gradient is (g - x * sum(x * g) / n - sum(g) / n) * d.
    """
    plans = [_over_last(value, _WHITEN, groups, machine)]
    if has_weight:
        plans.append(_by_feature("multiply", value, features, machine))
    plans.append(_over_last(value, ("multiply", *_SUMS_AND_GRADIENT), groups, machine))
    if any(v is not None for v in op.outputs[1:]):
        plans.append(_over_last(value, ("multiply", REDUCE, REDUCE), features, machine, is_inner=False))
    return in_sequence("norms", *plans)


def rule_group_norm(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan aten.native_group_norm(input, weight, bias, N, C, HxW, group, eps).

    It costs as much as a layer norm of groups of channels.
    """
    samples, channels, _, groups = op.args[3:7]
    return _norm(tensor(graph, op.args[0]), max(1, samples * groups), max(1, channels), op.args[1:3], machine)


def rule_group_norm_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan aten.native_group_norm_backward(grad, input, mean, rstd, weight, N, C, HxW, group, mask)."""
    grad, (samples, channels, _, groups) = tensor(graph, op.args[0]), op.args[5:9]
    return _norm_backward(grad, max(1, samples * groups), max(1, channels), op, isinstance(op.args[4], Ref), machine)


def _by_feature(kind: str, value: Value, features: int, machine: Machine) -> Plan:
    """Plan an addition or multiplication in place, with one row for all rows."""
    return plan_elementwise(kind, max(1, value.numel), width(value), machine, operand=features)


def rule_batch_norm(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan `popnn::bn`; each channel costs as much as a row of a layer norm."""
    value = tensor(graph, op.args[0])
    steps = (*_NORM, "multiply by group", "add by group")
    return _over_last(value, steps, max(1, value.shape[1]), machine, is_inner=False)


def rule_batch_norm_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the gradients of a batch norm.

    Up to a factor, the sums for the input's gradient are also the gradients of weight and bias.
    """
    grad = tensor(graph, op.args[0])
    steps = (*_WHITEN, "multiply by group", "multiply", *_SUMS_AND_GRADIENT)
    return _over_last(grad, steps, max(1, grad.shape[1]), machine, is_inner=False)

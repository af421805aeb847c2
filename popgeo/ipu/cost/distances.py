"""Plans of the distances of all pairs of rows: by a product of matrices or by differences."""

import functools

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.matmul import plan_matmul
from popgeo.ipu.cost.operands import tensor, width
from popgeo.ipu.cost.plan import Plan, Profile
from popgeo.ipu.cost.reduce import plan_reduce
from popgeo.ipu.cost.supersteps import in_sequence


@functools.lru_cache(maxsize=1024)
def plan_cdist(left: int, right: int, features: int, width: int, machine: Machine) -> Plan:
    """Plan Euclidean distances between two sets of points; the plan is the cheaper of product and differences.

    Args:
        left: Points of the first set.
        right: Points of the second set.
        features: Coordinates of a point.
        width: Bytes of a coordinate.
        machine: The machine and its constants.
    """
    pairs = left * right
    root = plan_elementwise("sqrt", pairs, width, machine)
    direct = in_sequence(
        "distances",
        plan_elementwise("subtract", pairs * features, width, machine, operand=max(left, right) * features),
        plan_elementwise("square", pairs * features, width, machine),
        plan_reduce(pairs, features, width, machine, is_inner=True),
        root,
    )
    product = in_sequence(
        "distances",
        plan_matmul(left, features, right, width, machine),
        plan_elementwise("square", (left + right) * features, width, machine),
        plan_reduce(left + right, features, width, machine, is_inner=True),
        plan_elementwise("add product", pairs, width, machine, operand=left),
        plan_elementwise("add", pairs, width, machine, operand=right),
        root,
    )
    return min(direct, product, key=lambda plan: plan.cycles(Profile.CALIBRATED))


def rule_distances(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the distances between the rows of two matrices."""
    x, y = tensor(graph, op.args[0]), tensor(graph, op.args[1])
    left = max(1, x.numel // max(1, x.shape[-1]))
    return plan_cdist(left, max(1, y.shape[-2]), max(1, x.shape[-1]), width(x), machine)


def rule_distances_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the gradient of the first set.

    It is gradient / distance, times the differences, summed over the second set.
    """
    x, y = tensor(graph, op.args[1]), tensor(graph, op.args[2])
    left, right, features = max(1, x.shape[-2]), max(1, y.shape[-2]), max(1, x.shape[-1])
    return in_sequence(
        "distances",
        plan_elementwise("divide", left * right, width(x), machine),
        plan_matmul(left, right, features, width(x), machine),
        plan_reduce(left, right, width(x), machine, is_inner=True),
        plan_elementwise("add product", left * features, width(x), machine, operand=left),
        main=1,
    )

"""Which planner knows which operation."""

from popgeo.ipu.codelets import (
    copies,
    distances,
    fills,
    fused,
    indexing,
    losses,
    normalize,
    pointwise,
    products,
    reductions,
    sorting,
    views,
)
from popgeo.ipu.codelets.calibration import BOW_SDK3, Calibration, Machine
from popgeo.ipu.codelets.operands import Rule
from popgeo.ipu.codelets.unknown import plan_unknown
from popgeo.ipu.op_graph import Op, OpGraph
from popgeo.ipu.plan import Plan
from popgeo.ipu.target import IpuTarget

_FAMILIES = (
    views, fills, copies, pointwise, reductions, normalize, losses, sorting, distances, indexing, products, fused,
)  # fmt: skip
RULES: dict[str, Rule] = {name: rule for family in _FAMILIES for name, rule in family.RULES.items()}


def plan(graph: OpGraph, op: Op, target: IpuTarget, calibration: Calibration = BOW_SDK3) -> tuple[Plan, bool]:
    """The cheapest division of an operation, and whether a rule knows the operation.

    Args:
        graph: The program that it is part of.
        op: The operation.
        target: The machine.
        calibration: The fitted constants.
    """
    rule = RULES.get(_name(op.target))
    if rule is None:
        return plan_unknown(graph, op, target), False
    return rule(graph, op, Machine(target=target, calibration=calibration)), True


def _name(target: str) -> str:
    """A target without its overload and without the underscore that says it works in place.

    Example:
        >>> _name("aten.index_add_.default")
        'aten.index_add'
    """
    return target.rpartition(".")[0].rstrip("_")

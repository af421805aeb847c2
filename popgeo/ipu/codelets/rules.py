"""Which planner knows which operation."""

from popgeo.ipu.codelets.unknown import plan_unknown
from popgeo.ipu.op_graph import Op, OpGraph
from popgeo.ipu.plan import Plan
from popgeo.ipu.target import IpuTarget


def plan(graph: OpGraph, op: Op, target: IpuTarget) -> tuple[Plan, bool]:
    """The cheapest division of an operation, and whether a rule knows the operation."""
    return plan_unknown(graph, op, target), False

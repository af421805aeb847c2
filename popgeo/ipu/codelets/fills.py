"""Operations that make tensors out of nothing."""

from popgeo.ipu.codelets.calibration import Machine
from popgeo.ipu.codelets.operands import Rule, made, tensor, width
from popgeo.ipu.codelets.scatter import plan_fill
from popgeo.ipu.op_graph import Op, OpGraph
from popgeo.ipu.plan import Plan, Validity


def _fill(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    values = made(graph, op) or [tensor(graph, op.args[0])]
    step = plan_fill(sum(value.numel for value in values), width(values[0]), machine.target)
    return Plan(
        family="fill", split={"tiles": step.tiles}, supersteps=(step,), validity=Validity.ESTIMATE,
        why="no published measurement of a fill",
    )  # fmt: skip


RULES: dict[str, Rule] = {
    f"aten.{name}": _fill
    for name in (
        "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like",
        "fill", "zero", "arange", "scalar_tensor", "linspace", "eye", "tril_indices", "triu_indices",
    )
}  # fmt: skip

"""Operations that only look at memory in another way, and cost nothing."""

from popgeo.ipu.codelets.calibration import Machine
from popgeo.ipu.codelets.operands import Rule
from popgeo.ipu.op_graph import Op, OpGraph
from popgeo.ipu.plan import Plan, Validity


def _free(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    return Plan(family="view", validity=Validity.ESTIMATE, why="taken to cost nothing")


RULES: dict[str, Rule] = {
    f"aten.{name}": _free
    for name in (
        "view", "_unsafe_view", "reshape", "_reshape_alias", "view_as", "expand", "expand_as", "t", "transpose",
        "permute", "numpy_T", "mT", "movedim", "select", "slice", "narrow", "unsqueeze", "squeeze", "flatten",
        "unflatten", "split", "split_with_sizes", "chunk", "unbind", "diagonal", "as_strided", "alias", "detach",
        "lift", "lift_fresh", "view_as_real", "view_as_complex", "unfold", "empty", "empty_like", "new_empty",
        "empty_strided", "new_empty_strided", "empty_permuted", "sym_size", "_local_scalar_dense", "resize", "set",
    )
}  # fmt: skip

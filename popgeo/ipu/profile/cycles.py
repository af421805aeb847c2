"""The cost of every operation of a captured program on a machine."""

from popgeo.ipu.codelets.calibration import BOW_SDK3, Calibration
from popgeo.ipu.codelets.rules import plan
from popgeo.ipu.op_graph import Op, OpGraph
from popgeo.ipu.plan import OpCost
from popgeo.ipu.target import IpuTarget


def cost(graph: OpGraph, target: IpuTarget, calibration: Calibration = BOW_SDK3) -> tuple[OpCost, ...]:
    """A plan and its cost for each operation, in order.

    Args:
        graph: The captured program.
        target: The machine.
        calibration: The constants fitted to measurements.
    """
    return tuple(_cost(graph, op, target, calibration) for op in graph.ops)


def _cost(graph: OpGraph, op: Op, target: IpuTarget, calibration: Calibration) -> OpCost:
    chosen, known = plan(graph, op, target, calibration)
    tensors = [*op.reads(), *(v for v in op.outputs if v is not None)]
    return OpCost(
        target=op.target,
        phase=op.phase,
        module=op.module,
        source=op.source,
        shapes=" ".join(str(list(graph.values[v].shape)) for v in tensors),
        plan=chosen,
        known=known,
    )

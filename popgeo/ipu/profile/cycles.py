"""The cost of every operation of a captured program on a machine."""

from popgeo.ipu.codelets.rules import plan
from popgeo.ipu.op_graph import Op, OpGraph
from popgeo.ipu.plan import OpCost
from popgeo.ipu.target import IpuTarget


def cost(graph: OpGraph, target: IpuTarget) -> tuple[OpCost, ...]:
    """A plan and its cost for each operation, in order.

    Args:
        graph: The captured program.
        target: The machine.
    """
    return tuple(_cost(graph, op, target) for op in graph.ops)


def _cost(graph: OpGraph, op: Op, target: IpuTarget) -> OpCost:
    chosen, known = plan(graph, op, target)
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

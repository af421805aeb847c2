"""Plans of operations that are one operation here and several for poplar."""

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.capture.operations import operation_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.gather import plan_gather
from popgeo.ipu.cost.operands import made, read, tensor, width
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.cost.scatter import plan_scatter_add
from popgeo.ipu.cost.supersteps import in_sequence


def rule_cfconv(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a continuous-filter convolution: gather source rows, multiply them by filters, add them at destinations."""
    x, filters, result = tensor(graph, op.args[0]), tensor(graph, op.args[1]), made(graph, op)[0]
    num_edges, channels = filters.shape
    return in_sequence(
        "fused",
        plan_gather(x.shape[0], channels, num_edges, width(x), machine),
        plan_elementwise("multiply", num_edges * channels, width(x), machine),
        plan_scatter_add(result.shape[0], channels, num_edges, width(x), machine, makes_table=True),
        main=2,
    )


def rule_cfconv_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the gradients of a continuous-filter convolution.

    Each edge gathers its row of the gradient. Rows times filters are added at the sources; rows times source rows
    are the gradient of the filters.
    """
    grad, x, filters = (tensor(graph, op.args[n]) for n in range(3))
    num_edges, channels = filters.shape
    multiply = plan_elementwise("multiply", num_edges * channels, width(x), machine)
    return in_sequence(
        "fused",
        plan_gather(grad.shape[0], channels, num_edges, width(x), machine),
        multiply,
        plan_scatter_add(x.shape[0], channels, num_edges, width(x), machine, makes_table=True),
        plan_gather(x.shape[0], channels, num_edges, width(x), machine),
        multiply,
        main=2,
    )


def rule_fused(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the passes of an optimizer over all parameters at once."""
    elements = max(1, sum(value.numel for value in read(graph, op)[: len(op.args[0])]))
    kinds = operation_of(op.target).passes
    return in_sequence("fused", *(plan_elementwise(kind, elements, 4, machine) for kind in kinds))

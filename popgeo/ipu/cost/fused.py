"""Operations that are one here and several to poplar: they cost what poplar would run for them."""

import functools
from collections.abc import Sequence

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.gather import plan_gather
from popgeo.ipu.cost.operands import Rule, made, read, tensor, width
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.cost.scatter import plan_scatter_add
from popgeo.ipu.cost.supersteps import in_sequence


def _cfconv(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Gathers the sources' rows, multiplies them by the filters and adds them up at the destinations."""
    x, filters, result = tensor(graph, op.args[0]), tensor(graph, op.args[1]), made(graph, op)[0]
    num_edges, channels = filters.shape
    return in_sequence(
        "fused",
        plan_gather(x.shape[0], channels, num_edges, width(x), machine),
        plan_elementwise("multiply", num_edges * channels, width(x), machine),
        plan_scatter_add(result.shape[0], channels, num_edges, width(x), machine, makes_table=True),
        main=2,
    )


def _cfconv_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """The gradient's rows go to the edges, times the filters back to the sources, times the sources to the filters."""
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


def _update(kinds: Sequence[str], graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Passes over all parameters at once."""
    elements = sum(value.numel for value in read(graph, op)[: len(op.args[0])])
    return in_sequence("fused", *(plan_elementwise(kind, max(1, elements), 4, machine) for kind in kinds))


# Two running means, the root of the second, their quotient and the step.
_adam = functools.partial(_update, ("mix", "add product", "add", "sqrt", "divide", "add quotient"))
_momentum = functools.partial(_update, ("mix", "mix"))
RULES: dict[str, Rule] = {
    "popgeo.cfconv": _cfconv,
    "popgeo.cfconv_backward": _cfconv_backward,
    "aten._fused_adam": _adam,
    "aten._fused_adamw": _adam,
    "aten._fused_adagrad": _momentum,
    "aten._fused_sgd": _momentum,
}

"""Plans of element-wise operations: the elements of each tile, and the passes of its workers over them."""

import functools
from dataclasses import replace

import torch

from popgeo.capture.op_graph import Number, Op, OpGraph, Value
from popgeo.capture.operations import operation_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.loops import ARITHMETIC, LOOP_OF, LOOPS, elementwise_vertex
from popgeo.ipu.cost.operands import distinct, made, read, tensor, width
from popgeo.ipu.cost.plan import Plan, Superstep
from popgeo.ipu.cost.published_sizes import elementwise_validity
from popgeo.ipu.cost.supersteps import compute_step, exchange_step, in_sequence, overhead_step
from popgeo.ipu.cost.vertex_cycles import ceil_div

GRAIN_BYTES = 128  # least bytes of a tensor on a tile, before the next tile gets a part


def spread(elements: int, width: int, num_tiles: int) -> tuple[int, int]:
    """Return the elements of the fullest tile and the number of used tiles, for a tensor that poplar maps in order.

    Example:
        >>> spread(32, width=4, num_tiles=1472), spread(3200, 4, 1472), spread(147200, 4, 1472)
        ((32, 1), (32, 100), (100, 1472))
    """
    grain = GRAIN_BYTES // max(1, width)
    most = min(max(1, elements), max(grain, ceil_div(elements, num_tiles)))
    return most, ceil_div(max(1, elements), most)


@functools.lru_cache(maxsize=8192)
def plan_elementwise(kind: str, elements: int, width: int, machine: Machine, operand: int = 0, name: str = "") -> Plan:
    """Plan an element-wise operation on tensors of the same layout, in order over the tiles.

    Args:
        kind: A key of `LOOP_OF`.
        elements: Elements of the result.
        width: Bytes of an element.
        machine: The machine and its constants.
        operand: Elements of a smaller operand that is broadcast; each tile first receives its part. Default: none.
        name: Name of the compute set. Default: `kind`.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> plan = plan_elementwise("cosine", 32, 4, Machine(target=IpuTarget.bow()))
        >>> dict(plan.split), plan.supersteps[-1].ideal
        ({'tiles': 1}, 83146.0)
    """
    target, constants, loop = machine.target, machine.calibration, LOOPS[LOOP_OF[kind]]
    most, tiles = spread(elements, width, machine.num_tiles)
    steps: list[Superstep] = [overhead_step("start", calibrated=constants.elementwise_fixed, tiles=tiles)]
    if operand > 1:
        nbytes = min(operand, most) * width
        steps.append(exchange_step("bring smaller operand", target, bytes_in=nbytes, bytes_out=nbytes, tiles=tiles))
    steps.append(
        compute_step(
            name or kind, target, vertex=elementwise_vertex(most, loop, width, target), tiles=tiles,
            workers=most, evenness=elements / (tiles * most),
        )
    )  # fmt: skip
    validity, why = elementwise_validity(LOOP_OF[kind], name or kind, elements, width, machine)
    return replace(Plan.in_order("elementwise", tiles, steps, why, flops=loop.flops * elements), validity=validity)


def rule_elementwise(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the passes that the table of operations names; a single pass has the name of the operation.

    Poplar has no softplus that is safe for large numbers. Programs for it write max(x, 0) + log1p(exp(-|x|)), and each
    of these operations runs by itself, forward and backward. The machine computes both forms of gelu, with tanh and
    with erf, by tanh (`popnn::NonLinearityType::GELU`).
    """
    result = _result(graph, op)
    sources = [value for value in read(graph, op) if value.dtype.is_floating_point] or read(graph, op) or [result]
    row = operation_of(op.target)
    name = row.name.removeprefix("aten.").removeprefix("_foreach_")
    return _passes(row.passes, result, sources[0], _smaller(graph, op, result), op, machine, name)


def rule_pow(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a power; for some exponents poplar runs another operation, such as a square."""
    known = {2: "square", 3: "cube", 0.5: "sqrt", -0.5: "rsqrt", -1: "inverse", 1: "cast"}
    kind = known.get(op.args[1], "power")
    source = read(graph, op)[0]  # the exponent, if the base is a number
    return _passes((kind,), _result(graph, op), source, 0, op, machine, name=kind)


def rule_cast(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a conversion of types."""
    result, source = _result(graph, op), tensor(graph, op.args[0])
    return plan_elementwise("cast", result.numel, max(width(result), width(source)), machine)


def _passes(
    kinds: tuple[str, ...], result: Value, source: Value, smaller: int, op: Op, machine: Machine, name: str
) -> Plan:
    """Plan one pass with the given name, or several passes, each with its own name."""
    nbytes = width(source)
    if not source.dtype.is_floating_point:
        kinds = tuple("integer" if LOOP_OF[kind] in ARITHMETIC else kind for kind in kinds)
        nbytes = 4 if source.dtype is not torch.bool else 1
    elif kinds == ("add",) and any(isinstance(argument, int | float | Number) for argument in op.args):
        kinds = ("scalar",)
    elements = max(1, result.numel)
    if len(kinds) == 1:
        return plan_elementwise(kinds[0], elements, nbytes, machine, smaller, name)
    plans = [
        plan_elementwise(kind, elements, nbytes, machine, smaller if n == 0 else 0) for n, kind in enumerate(kinds)
    ]
    return in_sequence("elementwise", *plans)


def _result(graph: OpGraph, op: Op) -> Value:
    """Return the tensor that an operation makes or changes in place; the largest if there are several."""
    values = made(graph, op) + [graph.values[v] for v in op.writes] or read(graph, op)
    return max(values, key=lambda value: value.numel)


def _smaller(graph: OpGraph, op: Op, result: Value) -> int:
    """Return the elements of the largest broadcast operand, which is sent to the tiles; 0 without such an operand."""
    return max((distinct(value) for value in read(graph, op) if distinct(value) < result.numel), default=0)

"""Plans of pooling: windows of images reduced to one value each, and values distributed over windows."""

import functools
import math

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise, spread
from popgeo.ipu.cost.movement import plan_copy
from popgeo.ipu.cost.operands import made, tensor, width
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.cost.supersteps import compute_step, exchange_step, in_sequence
from popgeo.ipu.cost.vertex_cycles import ceil_div
from popgeo.ipu.target import IpuTarget

# Cycles of a worker of `popnn::MaxPooling` and similar vertices: before its first row, at the start of a run of
# vectors, and for each vector of a window's position. The gradient of a maximum also compares.
_START, _RUN, _VECTOR, _VECTOR_OF_MAX_GRADIENT = 40, 7, 3, 5


def pooling_vertex(results: int, taken: int, run: int, width: int, target: IpuTarget, per_vector: int = _VECTOR) -> int:
    """Return the cycles of a tile that reduces windows.

    Args:
        results: Elements of the result, which are cleared first.
        taken: Elements of all windows; an element of several windows counts in each.
        run: Neighboring vectors of a row that are processed at a time.
        width: Bytes of an element.
        target: The machine.
        per_vector: Cycles of a worker per vector.

    Example:
        >>> pooling_vertex(results=48, taken=192, run=4, width=4, target=IpuTarget.bow())
        720
    """
    workers, vector = target.workers_per_tile, target.vector_bytes // width
    cleared = ceil_div(ceil_div(results, vector), workers)
    vectors = ceil_div(ceil_div(taken, vector), workers)
    return workers * (_START + cleared + per_vector * vectors + _RUN * ceil_div(vectors, max(1, run)))


@functools.lru_cache(maxsize=1024)
def plan_pooling(
    results: int, taken: int, given: int, run: int, width: int, machine: Machine, per_vector: int = _VECTOR
) -> Plan:
    """Plan a reduction of windows, or a distribution of values over windows, with the results in order over the tiles.

    Args:
        results: Elements of the result.
        taken: Elements of all windows; an element of several windows counts in each.
        given: Elements of the arguments.
        run: Neighboring positions of a row that are processed at a time.
        width: Bytes of an element.
        machine: The machine and its constants.
        per_vector: Cycles of a worker per vector of `taken`.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> plan = plan_pooling(147200, 4 * 147200, 4 * 147200, 16, 4, Machine(target=IpuTarget.bow()))
        >>> [step.name for step in plan.supersteps], plan.flops
        (['bring windows', 'pool'], 588800)
    """
    target = machine.target
    most, tiles = spread(results, width, machine.num_tiles)
    nbytes = ceil_div(given, tiles) * width
    vertex = pooling_vertex(most, ceil_div(taken * most, results), run, width, target, per_vector)
    steps = (
        exchange_step("bring windows", target, bytes_in=nbytes, bytes_out=nbytes, tiles=tiles, is_irregular=True),
        compute_step("pool", target, vertex=vertex, tiles=tiles, evenness=results / (tiles * most)),
    )
    why = "cycles of pooling by poplibs' estimators, which no published measurement checks"
    return Plan.in_order("pooling", tiles, steps, why, nbytes=nbytes, flops=taken)


def _window(op: Op, large: tuple[int, ...], small: tuple[int, ...], kernel: int) -> int:
    """Return the positions of a window: the size of the kernel, or enough positions to cover the larger image."""
    if "adaptive" not in op.target:
        return math.prod(op.args[kernel]) * (op.args[kernel][0] if len(op.args[kernel]) == 1 else 1)
    return math.prod(ceil_div(a, max(1, b)) for a, b in zip(large[-2:], small[-2:], strict=True))


def rule_pooling(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a pooling of windows."""
    x, out = tensor(graph, op.args[0]), made(graph, op)[0]
    window = _window(op, x.shape, out.shape, 1)
    results = max(1, out.numel)
    return plan_pooling(results, results * window, max(1, x.numel), out.shape[-1], width(x), machine)


def rule_pooling_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the gradient of a pooling.

    The gradient of a maximum also reads the images and the places of the maxima.
    """
    grad, out = tensor(graph, op.args[0]), made(graph, op)[0]
    window = 1 if "upsample" in op.target else _window(op, out.shape, grad.shape, 2)
    given, per_vector = grad.numel, _VECTOR
    if "max_pool" in op.target:
        given, per_vector = 2 * grad.numel + out.numel, _VECTOR_OF_MAX_GRADIENT
    return plan_pooling(
        max(1, out.numel), max(1, grad.numel * window), max(1, given), grad.shape[-1], width(grad), machine, per_vector
    )


def rule_nearest(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan an upsampling that copies the nearest element."""
    out = made(graph, op)[0]
    return in_sequence("pooling", plan_copy(max(1, out.numel), width(out), machine))


def rule_bilinear(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a bilinear upsampling: copy the four neighbors of each element, and compute their weighted sum."""
    x, out = tensor(graph, op.args[0]), made(graph, op)[0]
    elements, nbytes = max(1, x.numel, out.numel), width(out)
    kinds = ("multiply", "add product", "add product", "add product")
    copy = plan_copy(4 * elements, nbytes, machine, pieces=4)
    passes = [plan_elementwise(kind, elements, nbytes, machine) for kind in kinds]
    return in_sequence("pooling", copy, *passes)

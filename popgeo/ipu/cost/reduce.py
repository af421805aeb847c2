"""Plans of sums, means and extremes over dimensions: on each tile first, then between tiles in one or two stages."""

import functools
import math
from dataclasses import replace

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise, spread
from popgeo.ipu.cost.operands import made, tensor, width
from popgeo.ipu.cost.plan import Plan, Superstep
from popgeo.ipu.cost.supersteps import compute_step, exchange_step, in_sequence, overhead_step
from popgeo.ipu.cost.vertex_cycles import ceil_div
from popgeo.ipu.target import IpuTarget

# Fixed cycles of a reduction on one tile, and further cycles if it crosses tiles. arXiv:1912.03413, section 5, measured
# 1481 + n cycles for n floats of one tile, and 3152 for one float on each of 1216 tiles.
FIXED_CYCLES, CROSSING_CYCLES = 1380.0, 870.0
_NORM = ("square",), "sqrt"
# Passes over all elements before the sum, and a pass over the results after it.
_AROUND: dict[str, tuple[tuple[str, ...], str]] = {
    "mean": ((), "scalar"), "norm": _NORM, "linalg_vector_norm": _NORM, "logsumexp": (("subtract", "exp"), "log"),
}  # fmt: skip


def reduce_vertex(outputs: int, summands: int, width: int, target: IpuTarget) -> int:
    """Return the cycles of a tile that reduces the same number of elements for each of its outputs.

    One output takes one cycle per element, as measured (arXiv:1912.03413, section 5). For several outputs each worker
    takes a vector of outputs (`popops::StridedReduce`).

    Example:
        >>> bow = IpuTarget.bow()
        >>> reduce_vertex(1, 1000, 4, bow), reduce_vertex(12, 10, 4, bow)
        (1017, 216)
    """
    if outputs == 1:
        return 17 + summands
    vectors = ceil_div(ceil_div(outputs, target.workers_per_tile), target.vector_bytes // width)
    return target.workers_per_tile * (16 + vectors * (8 + 3 + (summands - 1)))


@functools.lru_cache(maxsize=4096)
def plan_reduce(outputs: int, summands: int, width: int, machine: Machine, is_inner: bool = False) -> Plan:
    """Plan the reduction of `outputs` sets of `summands` elements each.

    Args:
        outputs: Elements of the result.
        summands: Elements of each set.
        width: Bytes of an element.
        machine: The machine and its constants.
        is_inner: Whether the elements of a set are next to each other, so that a tile holds whole small sets.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> plan = plan_reduce(1, 1472, 4, Machine(target=IpuTarget.bow()))
        >>> [step.name for step in plan.supersteps if step.ideal][-2:]
        ['exchange partial results', 'combine partial results']
    """
    target = machine.target
    outputs, summands = max(1, outputs), max(1, summands)
    most, tiles = spread(outputs * summands, width, machine.num_tiles)
    mine = max(1, most // summands) if is_inner else min(outputs, most)
    each = max(1, most // mine)
    partials = min(tiles, ceil_div(summands, each))
    local = reduce_vertex(mine, each, width, target)
    steps: list[Superstep] = [
        overhead_step("start and finish", calibrated=FIXED_CYCLES, tiles=tiles),
        compute_step("reduce on each tile", target, vertex=local, tiles=tiles, workers=mine),
    ]
    if partials > 1:
        steps.append(overhead_step("start between tiles", calibrated=CROSSING_CYCLES, tiles=tiles))
        pieces = [_between_tiles(outputs, pieces, width, target) for pieces in _stages(partials)]
        steps += min(pieces, key=lambda stages: sum(step.ideal for step in stages))
    why = "checked against measurements of the first generation only"
    plan = Plan.in_order("reduce", tiles, steps, why, nbytes=partials * width, flops=outputs * summands)
    return replace(plan, considered=len(_stages(partials)))


def _stages(partials: int) -> list[tuple[int, ...]]:
    """Return the ways to combine partial results: all at once, or in two stages of about their square root each."""
    root = math.isqrt(partials - 1) + 1
    return [(partials,), (root, ceil_div(partials, root))] if partials > 3 else [(partials,)]


def _between_tiles(outputs: int, pieces: tuple[int, ...], width: int, target: IpuTarget) -> list[Superstep]:
    """Return the supersteps that combine partial results of several tiles, stage by stage."""
    tiles = target.all_tiles
    steps = []
    left = math.prod(pieces)
    for count in pieces:
        left = ceil_div(left, count)
        receivers = min(tiles, outputs * left)
        mine = ceil_div(outputs * left, receivers)
        nbytes = mine * count * width
        steps += [
            exchange_step(
                "exchange partial results", target, bytes_in=nbytes, bytes_out=width, fragments=count, tiles=receivers
            ),
            compute_step(
                "combine partial results", target, vertex=reduce_vertex(mine, count, width, target), tiles=receivers,
                workers=mine,
            ),
        ]  # fmt: skip
    return steps


def rule_reduce(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a reduction over dimensions."""
    source, results = tensor(graph, op.args[0]), made(graph, op)
    outputs = max(1, results[0].numel)
    summands = max(1, source.numel // outputs)
    is_inner = bool(source.shape) and (results[0].shape[-1:] != source.shape[-1:] or outputs == 1)
    plan = plan_reduce(outputs, summands, width(source), machine, is_inner)
    name = op.target.split(".")[1]
    if name in ("var", "std", "var_mean", "std_mean"):
        square = plan_elementwise("add product", source.numel, width(source), machine, operand=outputs)
        return in_sequence("reduce", plan, square, plan)
    if name not in _AROUND:
        return plan
    before, after = _AROUND[name]
    plans = [plan_elementwise(kind, max(1, source.numel), width(source), machine) for kind in before]
    last = plan_elementwise(after, outputs, width(source), machine)
    return in_sequence("reduce", *plans, plan, last, main=len(before))


def rule_cumsum(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan running sums: each tile sums its part, the sums are summed, and each tile adds the sum before its part."""
    source = tensor(graph, op.args[0])
    elements, nbytes = max(1, source.numel), width(source)
    most, tiles = spread(elements, nbytes, machine.num_tiles)
    local = compute_step("running sums on each tile", machine.target, vertex=17 + most, tiles=tiles, workers=1)
    running = Plan(family="reduce", split={"tiles": tiles}, supersteps=(local,), flops=elements)
    add = plan_elementwise("add", elements, nbytes, machine, operand=tiles)
    return in_sequence("reduce", running, plan_reduce(1, tiles, nbytes, machine), add)

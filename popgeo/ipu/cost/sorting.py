"""Plans of sort and top-k: a bitonic network of compare-and-swap stages, as in popops.

Each stage is an exchange and a compute set.
"""

import functools
import math

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.capture.schemas import argument_of, position_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import spread
from popgeo.ipu.cost.operands import tensor, width
from popgeo.ipu.cost.plan import Plan, Superstep
from popgeo.ipu.cost.supersteps import compute_step, exchange_step
from popgeo.ipu.cost.vertex_cycles import ceil_div


def stage_shares(length: int, k: int) -> list[float]:
    """Return the share of the elements in each stage of a search for the largest `k` of `length` elements.

    Sorting runs of k takes lk (lk + 1) / 2 stages with lk = log2 k. Then pairs of runs are merged in 1 + lk stages
    each, and each merge drops the half that cannot be among the largest.

    Example:
        >>> stage_shares(8, 8), stage_shares(8, 2)
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.5, 0.5, 0.25])
    """
    log_k = math.ceil(math.log2(max(1, min(k, length))))
    log_length = math.ceil(math.log2(max(1, length)))
    stages = [1.0] * (log_k * (log_k + 1) // 2)
    for merge in range(log_length - log_k):
        stages += [0.5**merge] + [0.5 ** (merge + 1)] * log_k
    return stages


@functools.lru_cache(maxsize=1024)
def plan_sort(rows: int, length: int, k: int, width: int, machine: Machine) -> Plan:
    """Plan a search for the largest `k` of `length` elements in each of `rows` rows, in order, with their places.

    Args:
        rows: Number of rows.
        length: Elements of a row.
        k: Number of elements to find in each row.
        width: Bytes of an element.
        machine: The machine and its constants.
    """
    target = machine.target
    steps: list[Superstep] = []
    tiles_used = 1
    for number, share in enumerate(stage_shares(length, k)):
        entries, tiles = spread(max(1, round(rows * length * share)), width, machine.num_tiles)
        tiles_used = max(tiles_used, tiles)
        # A row on one tile needs no exchange.
        if length > entries:
            name, nbytes = f"exchange pairs, stage {number + 1}", entries // 2 * (width + 4)
            steps.append(exchange_step(name, target, bytes_in=nbytes, bytes_out=nbytes, tiles=tiles))
        pairs = ceil_div(entries, 2)
        workers = target.workers_per_tile
        vertex = 19 + workers * (23 + 4 * ceil_div(entries, workers) + 11 * ceil_div(pairs, workers))
        steps.append(compute_step(f"compare and swap, stage {number + 1}", target, vertex=vertex, tiles=tiles))
    nbytes = 2 * spread(rows * length, width, machine.num_tiles)[0] * (width + 4)
    return Plan.in_order("sorting", tiles_used, steps, "no published measurement of a sort", nbytes=nbytes)


def rule_sorting(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the order of each row, or its largest elements; the k-th element needs the whole order.

    If only the first places of a sort are read, poplar runs `popops::topK`, which also keeps equal elements in order.
    """
    value = tensor(graph, op.args[0])
    found = argument_of(op, "dim") if position_of(op, "dim") is not None else -1
    length = max(1, value.shape[found] if value.shape else 1)
    k = int(op.args[1]) if op.target.startswith("aten.topk.") else _first_read(graph, op, found, length)
    return plan_sort(max(1, value.numel // length), length, k, width(value), machine)


def _first_read(graph: OpGraph, op: Op, dim: int, length: int) -> int:
    """Return the number of leading results of a sort that are read; the whole length if other results are read."""
    made, rank = set(op.makes()), len(graph.values[op.makes()[0]].shape)
    readers = [one for one in graph.ops if made & set(one.reads())]
    are_slices = all(one.target == "aten.slice.Tensor" for one in readers)
    if not readers or made & set(graph.outputs) or not are_slices:
        return length
    start, along, end = ({argument_of(one, name) for one in readers} for name in ("start", "dim", "end"))
    is_first = start == {0} and {axis % rank for axis in along} == {dim % rank}
    return max(slice(0, each).indices(length)[1] for each in end) if is_first else length

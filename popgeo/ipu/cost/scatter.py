"""Plans of scatter-adds of rows, split over columns x rows x summands, as in `popops::embedding::plan`."""

import dataclasses
import functools

import numpy as np

from popgeo.capture.op_graph import Op, OpGraph, Value
from popgeo.capture.operations import name_of
from popgeo.capture.schemas import argument_of
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.gather import INDEX_BYTES, indexed, named_rows, plan_row_gather, size_of
from popgeo.ipu.cost.operands import made, tensor, width
from popgeo.ipu.cost.plan import Plan, Superstep, Validity
from popgeo.ipu.cost.published_sizes import scatter_validity
from popgeo.ipu.cost.splits import CheapestSplit, cheapest, column_grains, largest_block, within, work_space
from popgeo.ipu.cost.supersteps import compute_step, in_sequence, overhead_step, repeated, transfer_cycles
from popgeo.ipu.cost.vertex_cycles import add_partials, add_rows, ceil_div, fill
from popgeo.ipu.target import IpuTarget

# The operations of torch's reductions on rows; other reductions take an extreme.
_REDUCTIONS = {"sum": "add", "add": "add", "mean": "add", "prod": "multiply", "multiply": "multiply"}
_COLUMN_TURNS, _TURN_CYCLES = (1, 2, 4, 8, 16, 32, 64), 418  # with the launch, as long as a turn of a product
# The operations of summands on their rows; other operations of torch add.
_ROW_OPERATION = {"aten.index_copy": "write", "aten.scatter": "write", "popgeo.scatter_mul": "multiply"}
OPERATIONS = {"add": 3, "multiply": 3, "extreme": 5, "write": 2}
"""Cycles of a worker per element for each operation of a summand on its row."""


@functools.lru_cache(maxsize=4096)
def plan_scatter_add(
    table_rows: int,
    columns: int,
    summands: int,
    width: int,
    machine: Machine,
    makes_table: bool = False,
    operation: str = "add",
) -> Plan:
    """Plan the cheapest way to add rows to the rows of a table that an index selects.

    Each tile adds its share of the summands to a block of the table. If the summands are split, partial sums of the
    same block are added up afterwards.

    Args:
        table_rows: Rows of the result.
        columns: Elements of a row.
        summands: Rows to add.
        width: Bytes of an element.
        machine: The machine and its constants.
        makes_table: Whether the table is first filled.
        operation: Operation of a summand on its row, a key of `OPERATIONS`.
    """
    target, constants = machine.target, machine.calibration
    table_rows, columns, summands = max(1, table_rows), max(1, columns), max(1, summands)
    found = _search(table_rows, columns, summands, width, target, operation)
    n_columns, n_rows, n_summands = found.cuts
    tiles, block_rows = found.tiles, ceil_div(table_rows, n_rows)
    evenness = table_rows / (n_rows * block_rows)
    moving, adding = constants.scatter_exchange, constants.scatter_vertex
    steps: list[Superstep] = [overhead_step("start and finish", calibrated=constants.scatter_fixed, tiles=tiles)]
    if makes_table:
        steps.append(fill_step(table_rows * columns, width, target))
    steps += [
        found.exchange("spread summands and index", "spread", moving, receivers=n_rows, fragments=2),
        found.compute("update rows", "update", adding, workers=block_rows, evenness=evenness),
    ]
    if n_summands > 1:
        steps += [
            overhead_step("start sum of partials", calibrated=constants.scatter_partials, tiles=tiles),
            found.exchange("exchange partial sums", "reduce", moving, fragments=n_summands),
            found.compute("add partial sums", "merge", adding),
        ]
    else:
        steps.append(found.exchange("return result", "store", moving))
    layout = (
        constants.scatter_result_layout * table_rows * columns + constants.scatter_source_layout * summands * columns
    ) / machine.num_tiles
    steps.append(overhead_step("lay out summands and result", calibrated=layout, tiles=tiles, is_sync=False))
    judged = scatter_validity(table_rows, columns, summands, width, machine)
    if operation != "add":
        judged = Validity.ESTIMATE, f"published for sums only, not for {operation}"
    split = {"columns": n_columns, "rows": n_rows, "lookups": n_summands}
    return found.plan("scatter", split, steps, judged, flops=summands * columns)


@functools.lru_cache(maxsize=4096)
def _search(
    table_rows: int, columns: int, summands: int, width: int, target: IpuTarget, operation: str
) -> CheapestSplit:
    """Return the cheapest split of a scatter-add over columns, rows and summands."""
    tiles = target.all_tiles
    splits = within(tiles, column_grains(columns, width), max(1, table_rows // 2), summands)
    rows, wide, mine = largest_block(table_rows, columns, summands, width, splits)
    vector = target.vector_bytes // 4
    has_partials = splits[2] > 1
    given, block = mine * wide * width, rows * wide * width
    spread_bytes = np.where(splits[1] > 1, given, np.maximum(given - summands * columns * width / tiles, 0))
    spread_bytes = spread_bytes + mine * INDEX_BYTES
    share = ceil_div(rows * wide, splits[2])
    reduce_bytes = np.where(has_partials, share * splits[2] * 4, 0)
    store_bytes = np.where(has_partials, 0, np.maximum(block - table_rows * columns * width / tiles, 0))
    workers = target.workers_per_tile
    scaled_add = workers * (60 + 3 * ceil_div(ceil_div(share, workers), vector))
    zero = np.where(has_partials, fill(rows * wide, vector), 0)
    add = add_rows(mine, rows, table_rows, wide, workers, OPERATIONS[operation])
    terms = {
        "spread": transfer_cycles(target, bytes_in=spread_bytes, fragments_in=2),
        "spread_bytes": spread_bytes,
        "update": add + zero,
        "reduce": transfer_cycles(
            target, bytes_in=reduce_bytes, bytes_out=reduce_bytes, fragments_in=splits[2], fragments_out=splits[2]
        ),
        "reduce_bytes": reduce_bytes,
        "merge": np.where(has_partials, add_partials(share, splits[2], vector) + scaled_add, 0),
        "store": transfer_cycles(target, bytes_in=store_bytes, bytes_out=store_bytes),
        "store_bytes": store_bytes,
        "nbytes": np.where(has_partials, 2 * block, block) + given + mine * INDEX_BYTES,
    }
    cycles = terms["spread"] + zero + add + terms["reduce"] + terms["merge"] + terms["store"]
    cycles[has_partials] += target.sync_cycles + target.launch_cycles
    return cheapest(splits, cycles, terms, target)


def fill_step(elements: int, width: int, target: IpuTarget) -> Superstep:
    """Return the superstep that fills a tensor with one number on all tiles."""
    tiles = min(target.all_tiles, ceil_div(elements * width, 128) or 1)
    vertex = fill(ceil_div(elements, tiles), target.vector_bytes // width)
    return compute_step("fill", target, vertex=float(vertex), tiles=tiles, workers=1)


def _row_operation(op: Op) -> str:
    """Return the operation of each summand on its row."""
    name = name_of(op.target)
    if name.endswith("_reduce"):
        return _REDUCTIONS.get(argument_of(op, "reduce"), "extreme")
    return _ROW_OPERATION.get(name, "add")


def rule_index_add(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a change of slices along a dimension."""
    result, dim = tensor(graph, op.args[0]), op.args[1]
    return _change_rows(result, size_of(result, dim), tensor(graph, op.args[2]).numel, machine, _row_operation(op))


def rule_scatter_add(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a change of single elements along a dimension."""
    result, dim, index = tensor(graph, op.args[0]), op.args[1], tensor(graph, op.args[2])
    rows, columns, summands = named_rows(result, dim, index)
    return plan_scatter_add(rows, columns, summands, width(result), machine, operation=_row_operation(op))


def rule_scatter_reduce(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a reduction of single elements; a mean is a sum, a sum of ones and their quotient."""
    total = rule_scatter_add(graph, op, machine)
    if argument_of(op, "reduce") != "mean":
        return total
    result, dim, index = tensor(graph, op.args[0]), op.args[1], tensor(graph, op.args[2])
    rows, _, summands = named_rows(result, dim, index)
    counts = plan_scatter_add(rows, 1, summands, width(result), machine, makes_table=True)
    divide = plan_elementwise("divide", max(1, result.numel), width(result), machine, operand=rows)
    return in_sequence("scatter", total, counts, divide)


def rule_index_put(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan `x[i, j, ...] = values`, or the addition of values there."""
    result = tensor(graph, op.args[0])
    rows, summands = indexed(graph, result, op.args[1])
    accumulates = len(op.args) > 3 and bool(op.args[3])
    return _change_rows(result, rows, summands, machine, "add" if accumulates else "write")


def plan_embedding_gradient(rows: int, columns: int, summands: int, width: int, machine: Machine) -> Plan:
    """Plan a scatter-add into a table of zeros; process some columns at a time if the work space is small.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> gpt = plan_embedding_gradient(50257, 5120, 2048, 2, Machine(target=IpuTarget.bow()))
        >>> gpt.supersteps[-1].name, gpt.flops == 2048 * 5120
        ('loop over columns', True)
    """
    whole = plan_scatter_add(rows, columns, summands, width, machine, makes_table=True)
    space = work_space(machine.target, rows * columns * width / machine.num_tiles)
    for turns in _COLUMN_TURNS:
        part = plan_scatter_add(rows, ceil_div(columns, turns), summands, width, machine, makes_table=True)
        if part.temporary_bytes <= space or turns >= columns:
            break
    if turns == 1:
        return whole
    loop = compute_step("loop over columns", machine.target, vertex=_TURN_CYCLES, tiles=machine.num_tiles)
    return dataclasses.replace(
        part, supersteps=tuple(repeated(step, turns) for step in (*part.supersteps, loop)), flops=whole.flops
    )


def rule_embedding_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the gradient of an embedding."""
    result, index = made(graph, op)[0], tensor(graph, op.args[1])
    rows = max(1, result.shape[0])
    return plan_embedding_gradient(rows, max(1, result.numel // rows), index.numel, width(result), machine)


def rule_rows_added(graph: OpGraph, op: Op, machine: Machine, operation: str = "") -> Plan:
    """Plan a reduction of rows into a new table."""
    result, source = made(graph, op)[0], tensor(graph, op.args[0])
    return _change_rows(
        result, result.shape[0], source.shape[0], machine, operation or _row_operation(op), makes_table=True
    )


def rule_extreme_rows(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan the largest rows and their places.

    The results go back to the edges, and the edges with an equal row write their number.
    """
    result, source = made(graph, op)[0], tensor(graph, op.args[0])
    found = rule_rows_added(graph, op, machine, "extreme")
    back = plan_row_gather(result, result.shape[0], source.shape[0], machine)
    match = plan_elementwise("select", max(1, source.numel), width(source), machine)
    write = rule_rows_added(graph, op, machine, "write")
    return in_sequence("scatter", found, back, match, write)


def _change_rows(
    result: Value, rows: int, summands: int, machine: Machine, operation: str = "add", makes_table: bool = False
) -> Plan:
    """Plan a change of rows of a result."""
    columns = result.numel // max(1, rows)
    return plan_scatter_add(rows, columns, summands, width(result), machine, makes_table, operation)

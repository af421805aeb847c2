"""Plans of gathers of rows, split over columns x rows x lookups, as in `popops::embedding::plan`."""

import functools
from typing import Any

import numpy as np

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.operands import made, tensor, width
from popgeo.ipu.cost.plan import Plan, Superstep
from popgeo.ipu.cost.published_sizes import gather_validity
from popgeo.ipu.cost.splits import CheapestSplit, cheapest, column_grains, largest_block, within
from popgeo.ipu.cost.supersteps import overhead_step, transfer_cycles
from popgeo.ipu.cost.vertex_cycles import ceil_div, slice_rows
from popgeo.ipu.target import IpuTarget

INDEX_BYTES = 4


@functools.lru_cache(maxsize=4096)
def plan_gather(table_rows: int, columns: int, lookups: int, width: int, machine: Machine) -> Plan:
    """Plan the cheapest way to copy the rows of a table that an index selects.

    Each tile holds a block of the table and copies the rows of its lookups from there. If the table's rows are split,
    a second stage selects for each lookup the answer of the block with its row.

    Args:
        table_rows: Rows of the table.
        columns: Elements of a row.
        lookups: Rows of the result.
        width: Bytes of an element.
        machine: The machine and its constants.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> dict(plan_gather(4096, 128, 32768, 4, Machine(target=IpuTarget.bow())).split)
        {'columns': 32, 'rows': 1, 'lookups': 46}
    """
    target, constants = machine.target, machine.calibration
    table_rows, columns, lookups = max(1, table_rows), max(1, columns), max(1, lookups)
    found = _search(table_rows, columns, lookups, width, target)
    n_columns, n_rows, n_lookups = found.cuts
    tiles, per_tile = found.tiles, ceil_div(lookups, n_lookups)
    evenness = lookups / (n_lookups * per_tile)
    moving, copying = constants.gather_exchange, constants.gather_vertex
    steps: list[Superstep] = [
        overhead_step("start and finish", calibrated=constants.gather_fixed, tiles=tiles),
        found.exchange("spread table and index", "spread", moving, receivers=n_lookups, fragments=2),
        found.compute("slice rows", "slice", copying, workers=per_tile, evenness=evenness),
    ]
    if n_rows > 1:
        uneven = constants.gather_uneven if table_rows % n_rows else 0.0
        steps += [
            overhead_step("even out rows", calibrated=uneven, tiles=tiles, is_sync=False),
            overhead_step("start second stage", calibrated=constants.gather_two_stage, tiles=tiles),
            found.exchange("regroup blocks of rows", "regroup", moving, fragments=n_rows),
            found.compute("select block", "select", copying, workers=ceil_div(per_tile, n_rows)),
        ]
    layout = constants.gather_result_layout * lookups * columns / machine.num_tiles
    steps.append(overhead_step("lay out result", calibrated=layout, tiles=tiles, is_sync=False))
    split = {"columns": n_columns, "rows": n_rows, "lookups": n_lookups}
    return found.plan("gather", split, steps, gather_validity(table_rows, columns, lookups, width, machine))


@functools.lru_cache(maxsize=4096)
def _search(table_rows: int, columns: int, lookups: int, width: int, target: IpuTarget) -> CheapestSplit:
    """Return the cheapest split of a gather over columns, rows and lookups."""
    tiles = target.all_tiles
    splits = within(tiles, column_grains(columns, width), max(1, table_rows // 2), lookups)
    rows, wide, mine = largest_block(table_rows, columns, lookups, width, splits)
    block, even = rows * wide * width, table_rows * columns * width / tiles
    # Each tile receives its block if several tiles share it. Otherwise only the uneven part of the table moves.
    spread_bytes = np.where(splits[2] > 1, block, np.maximum(block - even, 0)) + mine * INDEX_BYTES
    two_stages = splits[1] > 1
    picked = ceil_div(mine, splits[1])
    regroup_bytes = np.where(two_stages, splits[1] * picked * wide * width, 0)
    terms = {
        "spread": transfer_cycles(target, bytes_in=spread_bytes, fragments_in=2),
        "spread_bytes": spread_bytes,
        "slice": slice_rows(mine, rows, table_rows, wide, target.workers_per_tile),
        "regroup": transfer_cycles(
            target, bytes_in=regroup_bytes, bytes_out=regroup_bytes, fragments_in=splits[1], fragments_out=splits[1]
        ),
        "regroup_bytes": regroup_bytes,
        "select": np.where(two_stages, slice_rows(picked, 1, 1, wide, target.workers_per_tile), 0),
        "nbytes": np.where(splits[2] > 1, block, 0)
        + np.where(two_stages, mine * wide * width + regroup_bytes, 0)
        + mine * INDEX_BYTES,
    }
    # The planner of poplibs does not count a further step, either.
    cycles = terms["spread"] + terms["slice"] + terms["regroup"] + terms["select"]
    return cheapest(splits, cycles, terms, target)


def rule_gather(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a gather of rows, or of slices along a dimension."""
    table, result = tensor(graph, op.args[0]), made(graph, op)[0]
    rows = size_of(table, op.args[1] if op.target.startswith("aten.index_select.") else 0)
    return plan_row_gather(table, rows, result.numel // max(1, table.numel // max(1, rows)), machine)


def rule_index(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan `x[i, j, ...]`: the indexed dimensions become the rows of one table."""
    table = tensor(graph, op.args[0])
    return plan_row_gather(table, *indexed(graph, table, op.args[1]), machine)


def rule_elements(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan a gather of single elements along a dimension."""
    table, dim, index = tensor(graph, op.args[0]), op.args[1], tensor(graph, op.args[2])
    rows, columns, lookups = named_rows(table, dim, index)
    return plan_gather(rows, columns, lookups, width(table), machine)


def plan_row_gather(table: Value, rows: int, lookups: int, machine: Machine) -> Plan:
    """Plan a gather of rows of a value."""
    return plan_gather(rows, table.numel // max(1, rows), lookups, width(table), machine)


def indexed(graph: OpGraph, value: Value, indices: Any) -> tuple[int, int]:
    """Return the number of possible places of a list of indices, and the number of lookups."""
    rows = lookups = 1
    for size, index in zip(value.shape, indices, strict=False):
        if isinstance(index, Ref):
            rows, lookups = rows * size, max(lookups, graph.values[index.value].numel)
    return rows, lookups


def named_rows(table: Value, dim: int, index: Value) -> tuple[int, int, int]:
    """Return rows, columns and lookups of an index of several dimensions.

    If the index differs along all dimensions, it selects single elements: rows of one column.
    """
    dim %= max(1, len(index.shape))
    others = [
        (size, stride) for d, (size, stride) in enumerate(zip(index.shape, index.stride, strict=True)) if d != dim
    ]
    if all(size == 1 or stride == 0 for size, stride in others):
        lookups = max(1, size_of(index, dim))
        return max(1, size_of(table, dim)), max(1, index.numel // lookups), lookups
    return max(1, table.numel), 1, max(1, index.numel)


def size_of(value: Value, dim: int) -> int:
    """Return the size of a dimension; 1 for a scalar."""
    return value.shape[dim] if value.shape else 1

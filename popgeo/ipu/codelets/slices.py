"""Gather and scatter-add of rows: one space of plans, columns x rows x lookups, as in `popops::embedding::plan`."""

import functools
from typing import Any

import numpy as np

from popgeo.ipu.codelets.calibration import Machine
from popgeo.ipu.codelets.compute import compute_step, overhead_step
from popgeo.ipu.codelets.exchange import exchange_step, transfer_cycles
from popgeo.ipu.codelets.split import MEMORY_SHARE, at, cheapest, within
from popgeo.ipu.codelets.vertices import WORKERS, add_partials, add_rows, ceil_div, fill, slice_rows
from popgeo.ipu.plan import Plan, Superstep, Validity
from popgeo.ipu.target import IpuTarget

INDEX_BYTES = 4
_GRAIN_BYTES = 8  # a row is cut between words of so many bytes
VALID_TABLE, VALID_COLUMNS, VALID_LOOKUPS = (16, 4096), (16, 512), (32, 32768)


@functools.lru_cache(maxsize=4096)
def plan_gather(table_rows: int, columns: int, lookups: int, width: int, machine: Machine) -> Plan:
    """The cheapest way to copy rows of a table that an index names.

    Each tile holds a block of the table and copies what its share of the lookups finds there; where the table's rows
    are split, a second stage picks for each lookup the block that had its row.

    Args:
        table_rows: Rows of the table.
        columns: Elements of a row.
        lookups: Rows of the result.
        width: Bytes of an element.
        machine: What to plan for.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> dict(plan_gather(4096, 128, 32768, 4, Machine(target=IpuTarget.bow())).split)
        {'columns': 32, 'rows': 1, 'lookups': 46}
    """
    target, constants = machine.target, machine.calibration
    splits = within(machine.num_tiles, _grains(columns, width), max(1, table_rows // 2), lookups)
    terms = _gather_terms(table_rows, columns, lookups, width, splits, target)
    target.sync_cycles + target.launch_cycles
    # As the planner of poplibs, which charges nothing for a step more.
    cycles = terms["spread"] + terms["slice"] + terms["regroup"] + terms["select"]
    chosen = cheapest(cycles, terms["nbytes"], MEMORY_SHARE * target.memory_per_tile)
    n_columns, n_rows, n_lookups = (int(cut[chosen]) for cut in splits)
    t, tiles = at(terms, chosen), n_columns * n_rows * n_lookups
    per_tile = min(lookups, ceil_div(lookups, n_lookups))
    steps: list[Superstep] = [
        overhead_step("start and finish", calibrated=constants.gather_fixed, tiles=tiles),
        exchange_step(
            "spread table and index", target, transfer=t["spread"],
            calibrated=constants.gather_exchange * t["spread"], bytes_in=t["spread_bytes"],
            bytes_out=t["spread_bytes"] / max(1, n_lookups), fragments=2, tiles=tiles,
        ),
        compute_step(
            "slice rows", target, vertex=t["slice"], calibrated=constants.gather_vertex * t["slice"], tiles=tiles,
            workers=min(WORKERS, per_tile), evenness=lookups / (n_lookups * per_tile),
        ),
    ]  # fmt: skip
    if n_rows > 1:
        steps += [
            overhead_step("start second stage", calibrated=constants.gather_two_stage, tiles=tiles),
            exchange_step(
                "regroup blocks of rows", target, transfer=t["regroup"],
                calibrated=constants.gather_exchange * t["regroup"], bytes_in=t["regroup_bytes"],
                bytes_out=t["regroup_bytes"], fragments=n_rows, tiles=tiles,
            ),
            compute_step(
                "select block", target, vertex=t["select"], calibrated=constants.gather_vertex * t["select"],
                tiles=tiles, workers=min(WORKERS, ceil_div(per_tile, n_rows)),
            ),
        ]  # fmt: skip
    layout = (
        constants.gather_result_layout * lookups * columns + constants.gather_table_layout * table_rows * columns
    ) / machine.num_tiles
    steps.append(overhead_step("lay out table and result", calibrated=layout, tiles=tiles, is_sync=False))
    validity, why = slice_validity(table_rows, columns, lookups, width)
    return Plan(
        family="gather",
        split={"columns": n_columns, "rows": n_rows, "lookups": n_lookups},
        supersteps=tuple(steps),
        temporary_bytes=int(t["nbytes"]),
        considered=splits.shape[1],
        validity=validity,
        why=why,
    )


@functools.lru_cache(maxsize=4096)
def plan_scatter_add(
    table_rows: int, columns: int, summands: int, width: int, machine: Machine, makes_table: bool = False
) -> Plan:
    """The cheapest way to add rows into the rows of a table that an index names.

    Each tile adds its share of the summands to a block of the table; where the summands are split, partial sums of
    the same block are added up afterwards.

    Args:
        table_rows: Rows of the result.
        columns: Elements of a row.
        summands: Rows to add.
        width: Bytes of an element.
        machine: What to plan for.
        makes_table: The table is to be filled with zeros first.
    """
    target, constants = machine.target, machine.calibration
    splits = within(machine.num_tiles, _grains(columns, width), max(1, table_rows // 2), max(1, summands))
    terms = _scatter_terms(table_rows, columns, summands, width, splits, target)
    step_cycles = target.sync_cycles + target.launch_cycles
    cycles = (
        terms["spread"] + terms["add"] + terms["reduce"] + terms["zero"] + terms["merge"] + terms["store"]
        + step_cycles * (1 + (splits[2] > 1))
    )  # fmt: skip
    chosen = cheapest(cycles, terms["nbytes"], MEMORY_SHARE * target.memory_per_tile)
    n_columns, n_rows, n_summands = (int(cut[chosen]) for cut in splits)
    t, tiles = at(terms, chosen), n_columns * n_rows * n_summands
    block_rows = ceil_div(table_rows, n_rows)
    x, v = constants.scatter_exchange, constants.scatter_vertex
    steps: list[Superstep] = [overhead_step("start and finish", calibrated=constants.scatter_fixed, tiles=tiles)]
    if makes_table:
        steps.append(plan_fill(table_rows * columns, width, target))
    steps += [
        exchange_step(
            "spread summands and index", target, transfer=t["spread"], calibrated=x * t["spread"],
            bytes_in=t["spread_bytes"], bytes_out=t["spread_bytes"] / n_rows, fragments=2, tiles=tiles,
        ),
        compute_step(
            "add rows", target, vertex=t["add"] + t["zero"], calibrated=v * (t["add"] + t["zero"]), tiles=tiles,
            workers=min(WORKERS, block_rows), evenness=table_rows / (n_rows * block_rows),
        ),
    ]  # fmt: skip
    if n_summands > 1:
        steps += [
            overhead_step("start sum of partials", calibrated=constants.scatter_partials, tiles=tiles),
            exchange_step(
                "exchange partial sums", target, transfer=t["reduce"], calibrated=x * t["reduce"],
                bytes_in=t["reduce_bytes"], bytes_out=t["reduce_bytes"], fragments=n_summands, tiles=tiles,
            ),
            compute_step(
                "add partial sums", target, vertex=t["merge"], calibrated=v * t["merge"], tiles=tiles
            ),
        ]  # fmt: skip
    else:
        steps.append(
            exchange_step(
                "return result",
                target,
                transfer=t["store"],
                calibrated=x * t["store"],
                bytes_in=t["store_bytes"],
                bytes_out=t["store_bytes"],
                tiles=tiles,
            )
        )
    layout = (
        constants.scatter_result_layout * table_rows * columns + constants.scatter_source_layout * summands * columns
    ) / machine.num_tiles
    steps.append(overhead_step("lay out summands and result", calibrated=layout, tiles=tiles, is_sync=False))
    validity, why = slice_validity(summands, columns, table_rows, width)
    return Plan(
        family="scatter_add",
        split={"columns": n_columns, "rows": n_rows, "lookups": n_summands},
        supersteps=tuple(steps),
        temporary_bytes=int(t["nbytes"]),
        flops=summands * columns,
        considered=splits.shape[1],
        validity=validity,
        why=why,
    )


def plan_fill(elements: int, width: int, target: IpuTarget) -> Superstep:
    """Writes zeros over all tiles."""
    tiles = min(target.num_tiles * target.num_ipus, ceil_div(elements * width, 128) or 1)
    vertex = fill(ceil_div(elements, tiles), target.vector_bytes // width)
    return compute_step("fill with zeros", target, vertex=float(vertex), tiles=tiles, workers=1)


def slice_validity(inputs: int, columns: int, outputs: int, width: int) -> tuple[Validity, str]:
    """Whether sizes lie in the published sweep, and if not, in words, which do not."""
    if width != 4:
        return Validity.ESTIMATE, "published for float32 only"
    sizes = {
        "rows of the input": (inputs, VALID_TABLE),
        "columns": (columns, VALID_COLUMNS),
        "rows of the result": (outputs, VALID_LOOKUPS),
    }
    beyond = [
        f"{size:,} {name}, published for {low:,} to {high:,}"
        for name, (size, (low, high)) in sizes.items()
        if not low <= size <= high
    ]
    return (Validity.EXTRAPOLATED, "; ".join(beyond)) if beyond else (Validity.VALIDATED, "")


def _grains(columns: int, width: int) -> int:
    return max(1, ceil_div(columns, _GRAIN_BYTES // width))


def _blocks(
    rows: int, columns: int, items: int, width: int, splits: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and items of the largest block."""
    grain = _GRAIN_BYTES // width
    wide = np.minimum(columns, ceil_div(_grains(columns, width), splits[0]) * grain)
    return ceil_div(rows, splits[1]), wide, ceil_div(items, splits[2])


def _gather_terms(
    table_rows: int, columns: int, lookups: int, width: int, splits: np.ndarray, target: IpuTarget
) -> dict[str, Any]:
    tiles = target.num_tiles * target.num_ipus
    rows, wide, mine = _blocks(table_rows, columns, lookups, width, splits)
    block, even = rows * wide * width, table_rows * columns * width / tiles
    # A table that no two tiles share only moves as far as it did not lie evenly; else each tile gets its block.
    spread_bytes = np.where(splits[2] > 1, block, np.maximum(block - even, 0)) + mine * INDEX_BYTES
    two_stages = splits[1] > 1
    picked = ceil_div(mine, splits[1])
    regroup_bytes = np.where(two_stages, splits[1] * picked * wide * width, 0)
    select = WORKERS * (30 + ceil_div(picked, WORKERS) * (19 + 2 * ceil_div(wide, 2)))
    return {
        "spread": transfer_cycles(target, bytes_in=spread_bytes, fragments_in=2),
        "spread_bytes": spread_bytes,
        "slice": slice_rows(mine, rows, table_rows, wide),
        "regroup": transfer_cycles(
            target, bytes_in=regroup_bytes, bytes_out=regroup_bytes, fragments_in=splits[1], fragments_out=splits[1]
        ),
        "regroup_bytes": regroup_bytes,
        "select": np.where(two_stages, select, 0),
        "nbytes": np.where(splits[2] > 1, block, 0)
        + np.where(two_stages, mine * wide * width + regroup_bytes, 0)
        + mine * INDEX_BYTES,
    }


def _scatter_terms(
    table_rows: int, columns: int, summands: int, width: int, splits: np.ndarray, target: IpuTarget
) -> dict[str, Any]:
    tiles = target.num_tiles * target.num_ipus
    rows, wide, mine = _blocks(table_rows, columns, summands, width, splits)
    vector = target.vector_bytes // 4
    has_partials = splits[2] > 1
    given, block = mine * wide * width, rows * wide * width
    spread_bytes = np.where(splits[1] > 1, given, np.maximum(given - summands * columns * width / tiles, 0))
    spread_bytes = spread_bytes + mine * INDEX_BYTES
    share = ceil_div(rows * wide, splits[2])
    reduce_bytes = np.where(has_partials, share * splits[2] * 4, 0)
    store_bytes = np.where(has_partials, 0, np.maximum(block - table_rows * columns * width / tiles, 0))
    scaled_add = WORKERS * (60 + 3 * ceil_div(ceil_div(share, WORKERS), vector))
    return {
        "spread": transfer_cycles(target, bytes_in=spread_bytes, fragments_in=2),
        "spread_bytes": spread_bytes,
        "zero": np.where(has_partials, fill(rows * wide, vector), 0),
        "add": add_rows(mine, rows, table_rows, wide),
        "reduce": transfer_cycles(
            target, bytes_in=reduce_bytes, bytes_out=reduce_bytes, fragments_in=splits[2], fragments_out=splits[2]
        ),
        "reduce_bytes": reduce_bytes,
        "merge": np.where(has_partials, add_partials(share, splits[2], vector) + scaled_add, 0),
        "store": transfer_cycles(target, bytes_in=store_bytes, bytes_out=store_bytes),
        "store_bytes": store_bytes,
        "nbytes": np.where(has_partials, 2 * block, block) + given + mine * INDEX_BYTES,
    }

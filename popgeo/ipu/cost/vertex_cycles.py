"""Cycles of the vertices that gather and add rows, and multiply matrices, as in the estimators of poplibs.

Workers are served in turn, so an instruction of one worker takes as many cycles of the tile as the tile has workers.
"""

from typing import Any

import numpy as np

from popgeo.ipu.target import IpuTarget


def ceil_div(total: Any, parts: Any) -> Any:
    """Return the quotient rounded up: the size of the largest part of a total that is cut evenly.

    Example:
        >>> ceil_div(7, 3)
        3
    """
    return -(-total // parts)


def slice_rows(lookups: Any, rows: Any, table_rows: Any, columns: Any, workers: int) -> Any:
    """Return the cycles of a vertex that copies listed rows of its block (`popops::MultiSlice`).

    The workers share the lookups. Each reads all of its lookups, and copies the row of each lookup in the block.

    Args:
        lookups: Lookups that the tile reads.
        rows: Rows of the table that the tile holds.
        table_rows: Rows of the whole table; lookups are assumed to be spread evenly over them.
        columns: Elements of a row that the tile holds.
        workers: Workers of a tile.

    Example:
        >>> slice_rows(lookups=60, rows=10, table_rows=100, columns=4, workers=6)
        750
    """
    mine = ceil_div(lookups, workers)
    hits = ceil_div(mine * rows, table_rows)
    return workers * (30 + hits * (19 + 2 * ceil_div(columns, 2)) + 8 * (mine - hits))


def add_rows(summands: Any, rows: Any, table_rows: Any, columns: Any, workers: int, operation: int = 3) -> Any:
    """Return the cycles of a vertex that adds rows at the places of an index (`popops::MultiUpdateAdd`).

    The workers share the rows of the table, so that no worker waits. Each reads the whole list of summands.

    Args:
        summands: Summands that the tile reads.
        rows: Rows of the table that the tile holds.
        table_rows: Rows of the whole table; summands are assumed to be spread evenly over them.
        columns: Elements of a row that the tile holds.
        workers: Workers of a tile.
        operation: Cycles of a worker per element after the first: 3 to add, 5 to take the larger.

    Example:
        >>> add_rows(summands=60, rows=12, table_rows=120, columns=4, workers=6)
        2118
    """
    hits = ceil_div(summands * ceil_div(rows, workers), table_rows)
    return workers * (38 + hits * (11 + operation * (columns - 1)) + 5 * (summands - hits))


def fill(elements: Any, vector: int) -> Any:
    """Return the cycles of a vertex with one worker that writes a number everywhere, a vector at a time.

    Example:
        >>> fill(elements=100, vector=2)
        73
    """
    return 23 + ceil_div(elements, vector)


def add_partials(elements: Any, partials: Any, vector: int) -> Any:
    """Return the cycles of a vertex that adds consecutive partial sums, one vector per cycle.

    Example:
        >>> add_partials(elements=10, partials=4, vector=2)
        37
    """
    return 17 + partials * ceil_div(elements, vector)


OUT_BLOCK = 16  # columns of the result that the matrix unit makes at once


def in_block(width: int) -> int:
    """Return the length of the piece of a row that the matrix unit takes at once: 16 float16 or 8 float32.

    Example:
        >>> in_block(2), in_block(4)
        (16, 8)
    """
    return 32 // width


def amp_vertex(rows: Any, contraction: Any, columns: Any, width: int, target: IpuTarget) -> Any:
    """Return cycles of [rows, contraction] times [contraction, columns] on a tile (`poplin::ConvPartial1x1Out`).

    For each block of weights the tile loads it, then its workers stream their share of the rows through the unit. The
    first pass over the contraction also clears the sums. The sizes are numbers or arrays.

    Args:
        rows: Rows of the left matrix.
        contraction: Columns of the left and rows of the right one.
        columns: Columns of the right one.
        width: Bytes of an element: 2 or 4.
        target: The machine.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> amp_vertex(rows=256, contraction=16, columns=16, width=2, target=IpuTarget.bow())
        1319.0
    """
    blocks_in, blocks_out = ceil_div(contraction, in_block(width)), ceil_div(columns, OUT_BLOCK)
    macs = target.float16_macs if width == 2 else target.float32_macs
    row_cycles = max(1, in_block(width) * OUT_BLOCK // macs)
    load = 512 // target.matrix_load_bytes
    workers = target.workers_per_tile
    mine = ceil_div(rows, workers)
    stream = _stream(mine, row_cycles, width)
    clear = stream if width == 2 else stream + 2 + row_cycles * mine
    per_pass = 15 + blocks_out * (25 + load + workers * stream)
    first = 11 + blocks_out * (25 + load + workers * clear)
    cycles = 63 + workers * (7 + 3 * (blocks_in - 1)) + (blocks_in - 1) * per_pass + first
    return float(cycles) if np.ndim(cycles) == 0 else cycles


def _stream(rows: Any, row_cycles: int, width: int) -> Any:
    """Return the cycles of a worker for its rows; short lists do not fill the pipeline of the matrix unit."""
    few = {2: (14, 25, 34, 31), 4: (24, 47, 46, 46)}[width]
    return np.take(few, np.minimum(rows, 3)) + row_cycles * np.maximum(rows - 3.0, 0)

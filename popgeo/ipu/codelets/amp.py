"""Cycles of the vertex that multiplies matrices with the tile's matrix unit."""

from typing import Any

import numpy as np

from popgeo.ipu.codelets.vertices import ceil_div
from popgeo.ipu.target import IpuTarget

OUT_BLOCK = 16  # columns of the result that the unit makes at once


def in_block(width: int) -> int:
    """Length of the piece of a row that the unit takes at once: 16 float16 or 8 float32.

    Example:
        >>> in_block(2), in_block(4)
        (16, 8)
    """
    return 32 // width


def amp_vertex(rows: Any, contraction: Any, columns: Any, width: int, target: IpuTarget) -> Any:
    """Multiplies [rows, contraction] by [contraction, columns] on one tile (`poplin::ConvPartial1x1Out`).

    For each block of weights: load it, then let the workers stream their share of the rows through the unit. The
    first pass over the contraction also clears the sums. Numbers or arrays of numbers.

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
    """Cycles of a worker for its rows: short lists do not fill the unit's pipeline."""
    few = {2: (14, 25, 34, 31), 4: (24, 47, 46, 46)}[width]
    return np.where(rows < 3, np.choose(np.clip(rows, 0, 3), few), few[3] + row_cycles * (rows - 3.0))

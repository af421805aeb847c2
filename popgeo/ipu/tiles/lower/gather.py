"""Lowers gathers of indexed rows; the transfers never depend on the index.

Each block of the table answers the lookups of its part that are in its rows. An exchange of fixed size collects the
answers, and a second step selects the answers of the right block.
"""

import itertools
from typing import Any

import numpy as np

from popgeo.capture.op_graph import Op
from popgeo.capture.operations import name_of
from popgeo.ipu.tiles.lower.builder import Scope, cuts, flat, part, reshaped
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.lower.rows import as_rows, names_rows, one_index, row_cuts_of, row_index, rows_of_edges, tiles_of
from popgeo.ipu.tiles.steps import Operand, Region, Vertex


def divides(scope: Scope, op: Op) -> bool:
    """Check whether an operation gathers rows."""
    name = name_of(op.target)
    return (name != "aten.index" or one_index(scope, op)) and (name != "aten.gather" or names_rows(scope, op))


def gather_rows(scope: Scope, table: Region, index: Region, out: Region | None = None, wraps: bool = False) -> Region:
    """Add the steps of a gather and return the rows of a table that an index names.

    Args:
        scope: The scope of the operation.
        table: The table. [rows, columns]
        index: Row of each lookup. [lookups]
        out: Region to write. Default: a partial result. [lookups, columns]
        wraps: Whether negative numbers count from the end.
    """
    builder, label = scope.builder, scope.label
    (num_rows, columns), lookups = table.elements.shape, index.elements.size
    row_cuts, column_cuts, lookup_cuts = row_cuts_of(scope, "gather", num_rows, columns, lookups)
    answers_at = np.zeros((len(row_cuts), lookups, columns), np.int32)
    spread_at = np.zeros((lookups, columns), np.int32)
    tiles = tiles_of(scope, lookup_cuts, row_cuts, column_cuts)
    for (p, some), (u, narrow) in itertools.product(enumerate(lookup_cuts), enumerate(column_cuts)):
        answers_at[:, some, narrow] = tiles[p, :, u, None, None]
        for tile, share in zip(tiles[p, :, u], cuts(some.stop - some.start, len(row_cuts)), strict=False):
            spread_at[some.start + share.start : some.start + share.stop, narrow] = tile
    answers = scope.partials(out, builder.dtype(table), answers_at)

    def vertex(some: slice, s: int, rows: slice, narrow: slice) -> Vertex:
        """Return the vertex of a block of rows and columns for some lookups."""
        reads, made = (part(table, rows, narrow), part(index, some)), (part(answers, s, some, narrow),)
        arguments = Operand(0), Operand(1), rows.start, num_rows, wraps
        tile = int(answers_at[s, some.start, narrow.start])
        return Vertex(tile=tile, operation="slice rows", reads=reads, writes=made, arguments=arguments)

    blocks = itertools.product(lookup_cuts, enumerate(row_cuts), column_cuts) if lookups and columns else ()
    builder.compute(f"{label}: slice rows", [vertex(some, s, rows, narrow) for some, (s, rows), narrow in blocks])
    if len(row_cuts) == 1:
        if out is None or answers.variable == out.variable:
            return part(answers, 0)
        copy(scope, out, part(answers, 0))
        return out
    chosen = builder.partial(label, builder.dtype(table), spread_at) if out is None else out
    _choose(scope, chosen, answers, index, row_cuts[0].stop, num_rows, wraps)
    return chosen


def _choose(
    scope: Scope, out: Region, answers: Region, index: Region, rows_per_block: int, num_rows: int, wraps: bool
) -> None:
    """Select for each lookup the answer of the block that holds its row."""
    blocks, _, columns = answers.elements.shape
    each = answers.elements.reshape(blocks, -1)

    def work(tile: int, where: np.ndarray) -> tuple[list[Region], tuple[Any, ...]]:
        """Return the answers of all blocks, and the index, at some positions."""
        of_blocks = Region(variable=answers.variable, elements=each[:, where])
        return [of_blocks, flat(index, where // columns)], (Operand(0), Operand(1), rows_per_block, num_rows, wraps)

    scope.compute(f"{scope.label}: select block", "select block", out, work)


def lower_gather(scope: Scope, op: Op) -> None:
    """Lower popgeo.gather(x, index) and aten.embedding(weight, index)."""
    _gather_along(scope, op, 0, scope.region(op.args[1].value))


def lower_along(scope: Scope, op: Op) -> None:
    """Lower aten.index_select(x, dim, index), and aten.gather(x, dim, index) of rows."""
    _gather_along(scope, op, op.args[1], row_index(scope, op))


def lower_index(scope: Scope, op: Op) -> None:
    """Lower aten.index(x, [None, ..., index])."""
    dim = len(op.args[1]) - 1
    _gather_along(scope, op, dim, scope.region(op.args[1][dim].value), wraps=True)


def _gather_along(scope: Scope, op: Op, dim: int, index: Region, wraps: bool = False) -> None:
    """Gather slices of the first argument along a dimension as rows."""
    rows, out = as_rows(scope.region(op.args[0].value), dim), scope.region(op.outputs[0])
    several = dim == 0 and index.elements.ndim != 1
    into = reshaped(out, index.elements.size, rows.elements.shape[1]) if several else as_rows(out, dim)
    gather_rows(scope, rows, reshaped(index, -1), into, wraps)


def lower_gather_csr(scope: Scope, op: Op) -> None:
    """Lower popgeo.gather_csr(x, indptr, num_edges)."""
    table, out = scope.region(op.args[0].value), scope.region(op.outputs[0])
    gather_rows(scope, table, rows_of_edges(scope, scope.region(op.args[1].value), op.args[2]), out)

"""Gathers and scatter-adds of rows whose numbers are data: what moves is the same whatever they are.

A table is cut into blocks of rows and columns, the lookups into parts. Each block answers all lookups of its part that
fall into its rows; an exchange of fixed size brings the answers together, where those of the right block are chosen.
"""

import itertools

import numpy as np

from popgeo.ipu.tiles.lower.builder import Scope, flat, part
from popgeo.ipu.tiles.lower.elementwise import add
from popgeo.ipu.tiles.lower.matmul import cuts
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.lower.reduce import combine_partials
from popgeo.ipu.tiles.program import Operand, Region, Vertex


def gather_rows(scope: Scope, table: Region, index: Region, out: Region | None = None, wraps: bool = False) -> Region:
    """The rows of a table that an index names.

    Args:
        scope: What is lowered.
        table: [rows, columns]
        index: Row of each lookup. [lookups]
        out: Where to write; a partial result when left out. [lookups, columns]
        wraps: Whether negative numbers count from the end.
    """
    builder, label = scope.builder, scope.label
    (num_rows, columns), lookups = table.elements.shape, index.elements.size
    row_cuts, column_cuts, lookup_cuts = _cuts(scope, "gather", num_rows, columns, lookups)
    answers_at = np.zeros((len(row_cuts), lookups, columns), np.int32)
    spread_at = np.zeros((lookups, columns), np.int32)
    for (p, some), (u, narrow) in itertools.product(enumerate(lookup_cuts), enumerate(column_cuts)):
        tiles = [_tile(scope, p, s, u, len(row_cuts), len(column_cuts)) for s in range(len(row_cuts))]
        for s, tile in enumerate(tiles):
            answers_at[s, some, narrow] = tile
        for tile, share in zip(tiles, cuts(some.stop - some.start, len(tiles)), strict=False):
            spread_at[some.start + share.start : some.start + share.stop, narrow] = tile
    alone = len(row_cuts) == 1
    if alone and out is not None and (builder.holders(out) == answers_at[0]).all():
        answers = Region(variable=out.variable, elements=out.elements[None])
    else:
        answers = builder.partial(label, builder.dtype(table), answers_at)
    builder.compute(
        f"{label}: select rows",
        (
            Vertex(
                tile=int(answers_at[s, some.start, narrow.start]),
                operation="select rows",
                reads=(part(table, rows, narrow), part(index, some)),
                writes=(part(answers, s, some, narrow),),
                arguments=(Operand(0), Operand(1), rows.start, num_rows, wraps),
            )
            for some, (s, rows), narrow in itertools.product(lookup_cuts, enumerate(row_cuts), column_cuts)
            if lookups and columns
        ),
    )
    if alone:
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
    """Takes each lookup's answer from the block that holds its row."""
    blocks, _, columns = answers.elements.shape
    each = answers.elements.reshape(blocks, -1)
    scope.builder.compute(
        f"{scope.label}: choose answers",
        (
            Vertex(
                tile=tile,
                operation="choose",
                reads=(
                    Region(variable=answers.variable, elements=each[:, where]),
                    Region(variable=index.variable, elements=index.elements[where // columns]),
                ),
                writes=(flat(out, where),),
                arguments=(Operand(0), Operand(1), rows_per_block, num_rows, wraps),
            )
            for tile, where in scope.builder.pieces(out)
        ),
    )


def scatter_rows(
    scope: Scope,
    out: Region,
    index: Region,
    updates: Region,
    *,
    factor: Region | None = None,
    base: Region | None = None,
    how: str = "sum",
    alpha: float = 1,
    wraps: bool = False,
    skip: int = -1,
) -> None:
    """Reduces rows into those that an index names.

    Args:
        scope: What is lowered.
        out: What to write. [rows, columns]
        index: Row that each update goes to. [lookups]
        updates: [lookups, columns]
        factor: What to multiply the updates by. [lookups, columns]
        base: What they are added to; nothing when left out. [rows, columns]
        how: `sum` or `prod`.
        alpha: What the sum is multiplied by before it is added to `base`.
        wraps: Whether negative numbers count from the end.
        skip: A row that receives nothing.
    """
    builder, label = scope.builder, scope.label
    (num_rows, columns), lookups = out.elements.shape, index.elements.size
    row_cuts, column_cuts, lookup_cuts = _cuts(scope, "scatter", num_rows, columns, lookups)
    sums_at = np.zeros((len(lookup_cuts), num_rows, columns), np.int32)
    for (p, _), (s, rows), (u, narrow) in itertools.product(
        enumerate(lookup_cuts), enumerate(row_cuts), enumerate(column_cuts)
    ):
        sums_at[p, rows, narrow] = _tile(scope, p, s, u, len(row_cuts), len(column_cuts))
    direct = base is None and len(lookup_cuts) == 1 and bool((builder.holders(out) == sums_at[0]).all())
    sums = (
        Region(variable=out.variable, elements=out.elements[None])
        if direct
        else builder.partial(label, builder.dtype(out), sums_at)
    )

    def vertex(p: int, some: slice, rows: slice, narrow: slice) -> Vertex:
        reads = [part(updates, some, narrow), part(index, some)]
        if factor is not None:
            reads.append(part(factor, some, narrow))
        return Vertex(
            tile=int(sums_at[p, rows.start, narrow.start]),
            operation="update rows",
            reads=tuple(reads),
            writes=(part(sums, p, rows, narrow),),
            arguments=(
                Operand(0), Operand(1), Operand(2) if factor is not None else None,
                rows.start, rows.stop - rows.start, num_rows, how, wraps, skip,
            ),
        )  # fmt: skip

    blocks = itertools.product(enumerate(lookup_cuts), row_cuts, column_cuts)
    if out.elements.size:
        builder.compute(f"{label}: update rows", [vertex(p, some, rows, narrow) for (p, some), rows, narrow in blocks])
    if direct:
        return
    total = sums
    if len(lookup_cuts) > 1:
        whole = out if base is None else builder.partial(label, builder.dtype(out), builder.holders(out))
        places = np.broadcast_to(np.arange(out.elements.size).reshape(out.elements.shape), sums.elements.shape)
        combine_partials(scope, whole, sums, places, how)
        if base is None:
            return
        total = Region(variable=whole.variable, elements=whole.elements[None])
    if base is None:
        copy(scope, out, part(total, 0))
    else:
        add(scope, out, base, part(total, 0), alpha=alpha)


def _cuts(
    scope: Scope, family: str, rows: int, columns: int, lookups: int
) -> tuple[list[slice], list[slice], list[slice]]:
    """The division that the plan, or the part of it of this family, has chosen; else one that occupies the tiles."""
    parts = sorted((scope.plan, *scope.plan.parts), key=lambda plan: plan.family != family)
    split = next((plan.split for plan in parts if {"rows", "columns", "lookups"} <= plan.split.keys()), None)
    if split is None:
        tiles = scope.builder.num_tiles
        high = max(1, min(rows, 2))
        wide = max(1, min(-(-columns // 2), tiles // high))
        split = {"rows": high, "columns": wide, "lookups": max(1, min(lookups, tiles // (high * wide)))}
    return cuts(rows, split["rows"]), cuts(columns, split["columns"]), cuts(lookups, split["lookups"])


def _tile(scope: Scope, p: int, s: int, u: int, num_row_cuts: int, num_column_cuts: int) -> int:
    return ((p * num_row_cuts + s) * num_column_cuts + u) % scope.builder.num_tiles

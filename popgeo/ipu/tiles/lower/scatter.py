"""Lowers scatter-adds: each block of the result adds the rows of its part that an index assigns to it."""

import itertools
from functools import partial

import numpy as np

from popgeo.capture.op_graph import Op
from popgeo.capture.operations import name_of
from popgeo.ipu.tiles.lower.builder import Scope, part, reshaped
from popgeo.ipu.tiles.lower.elementwise import add
from popgeo.ipu.tiles.lower.in_parts import by_rows
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.lower.reduce import sum_of_parts
from popgeo.ipu.tiles.lower.rows import as_rows, names_rows, one_index, row_cuts_of, row_index, rows_of_edges, tiles_of
from popgeo.ipu.tiles.steps import Operand, Region, Vertex


def divides(scope: Scope, op: Op) -> bool:
    """Check whether an operation adds to rows."""
    name = name_of(op.target)
    if name == "aten.index_put":
        return one_index(scope, op) and (*op.args, False)[3] is True
    if name == "aten.scatter_add":
        return names_rows(scope, op)
    return name != "aten.embedding_dense_backward" or not op.args[4]


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
    """Add the steps that reduce rows into the rows that an index names.

    Args:
        scope: The scope of the operation.
        out: Region to write. [rows, columns]
        index: Row of each update. [lookups]
        updates: Rows to reduce. [lookups, columns]
        factor: Factors of the updates. Default: none. [lookups, columns]
        base: Region that the sums are added to. Default: none. [rows, columns]
        how: `sum` or `prod`.
        alpha: Factor of the sums before they are added to `base`.
        wraps: Whether negative numbers count from the end.
        skip: Row without updates.
    """
    builder, label = scope.builder, scope.label
    (num_rows, columns), lookups = out.elements.shape, index.elements.size
    row_cuts, column_cuts, lookup_cuts = row_cuts_of(scope, "scatter", num_rows, columns, lookups)
    sums_at = np.zeros((len(lookup_cuts), num_rows, columns), np.int32)
    tiles = tiles_of(scope, lookup_cuts, row_cuts, column_cuts)
    for (s, rows), (u, narrow) in itertools.product(enumerate(row_cuts), enumerate(column_cuts)):
        sums_at[:, rows, narrow] = tiles[:, s, u, None, None]
    sums = scope.partials(out if base is None else None, builder.dtype(out), sums_at)

    def vertex(p: int, some: slice, rows: slice, narrow: slice) -> Vertex:
        """Return the vertex of a block of rows and columns for some updates."""
        scale = () if factor is None else (part(factor, some, narrow),)
        reads, made = (part(updates, some, narrow), part(index, some), *scale), (part(sums, p, rows, narrow),)
        given = Operand(0), Operand(1), Operand(2) if scale else None
        arguments = (*given, rows.start, rows.stop - rows.start, num_rows, how, wraps, skip)
        tile = int(sums_at[p, rows.start, narrow.start])
        return Vertex(tile=tile, operation="update rows", reads=reads, writes=made, arguments=arguments)

    blocks = itertools.product(enumerate(lookup_cuts), row_cuts, column_cuts)
    if out.elements.size:
        builder.compute(f"{label}: update rows", [vertex(p, some, rows, narrow) for (p, some), rows, narrow in blocks])
    total = sum_of_parts(scope, sums, out, base is None, how)
    if base is not None:
        add(scope, out, base, total, alpha=alpha)
    elif total.variable != out.variable:
        copy(scope, out, total)


def lower_index_add(scope: Scope, op: Op) -> None:
    """Lower aten.index_add(x, dim, index, source, alpha), and aten.scatter_add(x, dim, index, source) of rows."""
    dim, alpha, index = op.args[1], op.kwargs.get("alpha", 1), reshaped(row_index(scope, op), -1)
    given = scope.region(op.args[0].value), scope.region(op.args[3].value), scope.region(op.outputs[0])
    base, source, out = (as_rows(region, dim) for region in given)
    scatter_rows(scope, out, index, part(source, slice(0, index.elements.size)), base=base, alpha=alpha)


def lower_index_put(scope: Scope, op: Op) -> None:
    """Lower aten.index_put(x, [index], values, accumulate=True)."""
    base, index, values = scope.region(op.args[0].value), scope.region(op.args[1][0].value), op.args[2]
    shape = (*index.elements.shape, *base.elements.shape[1:])
    given = scope.region(values.value)
    updates = Region(variable=given.variable, elements=np.broadcast_to(given.elements, shape))
    out = as_rows(scope.region(op.outputs[0]), 0)
    rows = reshaped(updates, index.elements.size, out.elements.shape[1])
    scatter_rows(scope, out, reshaped(index, -1), rows, base=as_rows(base, 0), wraps=True)


def lower_embedding_backward(scope: Scope, op: Op) -> None:
    """Lower the gradient of an embedding.

    Its arguments are (grad, index, num_weights, padding_idx, scale_grad_by_freq=False).
    """
    grad, index, out = scope.region(op.args[0].value), scope.region(op.args[1].value), scope.region(op.outputs[0])
    updates = reshaped(grad, index.elements.size, out.elements.shape[1])
    scatter_rows(scope, out, reshaped(index, -1), updates, skip=op.args[3])


def lower_scatter(scope: Scope, op: Op) -> None:
    """Lower popgeo.scatter_sum(src, index, num_rows) and popgeo.scatter_mul(src, index, num_rows)."""
    updates, index = scope.region(op.args[0].value), scope.region(op.args[1].value)
    how = "prod" if "scatter_mul" in op.target else "sum"
    scatter_rows(scope, scope.region(op.outputs[0]), index, updates, how=how)


# popgeo.scatter_max(src, index, num_rows) and popgeo.segment_max(src, indptr): a tile takes all updates of its columns.
lower_extremum = partial(by_rows, whole=(1,), dim=1)


def lower_segment_sum(scope: Scope, op: Op) -> None:
    """Lower popgeo.segment_sum(src, indptr)."""
    updates, out = scope.region(op.args[0].value), scope.region(op.outputs[0])
    index = rows_of_edges(scope, scope.region(op.args[1].value), updates.elements.shape[0])
    scatter_rows(scope, out, index, updates)

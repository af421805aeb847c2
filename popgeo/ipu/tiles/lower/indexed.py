"""Operations of torch and popgeo that gather or scatter rows, put as `gather_rows` and `scatter_rows`."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from popgeo.capture.op_graph import Op, Ref
from popgeo.ipu.tiles.lower.builder import Scope, part, reshaped
from popgeo.ipu.tiles.lower.elementwise import multiply
from popgeo.ipu.tiles.lower.matmul import cuts
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.lower.rows import gather_rows, scatter_rows
from popgeo.ipu.tiles.program import Operand, Region, Vertex


def lowering_of(scope: Scope, op: Op) -> Callable[[Scope, Op], None] | None:
    """The function that lowers an operation on rows; None where there is none."""
    name = op.target.split(".")[1]
    if name in ("index", "index_put", "index_put_") and not _one_index(scope, op):
        return None
    if name.startswith("index_put") and (*op.args, False)[3] is not True:
        return None
    of_elements = op.target.startswith("aten.") and name in ("scatter_add", "scatter_add_", "gather")
    if of_elements and not _names_rows(scope, op):
        return None
    if name == "embedding_dense_backward" and op.args[4]:
        return None
    return _LOWERINGS.get(op.target.rpartition(".")[0])


def _gather(scope: Scope, op: Op) -> None:
    """popgeo.gather(x, index), aten.embedding(weight, index)"""
    table, index, out = scope.region(op.args[0].value), scope.region(op.args[1].value), _out(scope, op)
    width = math.prod(table.elements.shape[1:])
    rows = reshaped(table, table.elements.shape[0], width)
    gather_rows(scope, rows, reshaped(index, -1), reshaped(out, index.elements.size, width))


def _index_select(scope: Scope, op: Op) -> None:
    """aten.index_select(x, dim, index), aten.gather(x, dim, index) of rows"""
    table, index, out = scope.region(op.args[0].value), _row_index(scope, op), _out(scope, op)
    _gather_along(scope, table, op.args[1], index, out)


def _index(scope: Scope, op: Op) -> None:
    """aten.index(x, [None, ..., index])"""
    dim = len(op.args[1]) - 1
    table, index, out = scope.region(op.args[0].value), scope.region(op.args[1][dim].value), _out(scope, op)
    _gather_along(scope, table, dim, index, out, wraps=True)


def _gather_along(scope: Scope, table: Region, dim: int, index: Region, out: Region, wraps: bool = False) -> None:
    rows = _rows(table, dim)
    several = dim == 0 and index.elements.ndim != 1
    into = reshaped(out, index.elements.size, rows.elements.shape[1]) if several else _rows(out, dim)
    gather_rows(scope, rows, reshaped(index, -1), into, wraps)


def _index_add(scope: Scope, op: Op) -> None:
    """aten.index_add(x, dim, index, source, alpha), aten.scatter_add(x, dim, index, source) of rows"""
    dim, alpha, index = op.args[1], op.kwargs.get("alpha", 1), reshaped(_row_index(scope, op), -1)
    base, source, out = (_rows(r, dim) for r in (*(scope.region(op.args[k].value) for k in (0, 3)), _out(scope, op)))
    scatter_rows(scope, out, index, part(source, slice(0, index.elements.size)), base=base, alpha=alpha)


def _index_put(scope: Scope, op: Op) -> None:
    """aten.index_put(x, [index], values, accumulate=True)"""
    base, index, values = scope.region(op.args[0].value), scope.region(op.args[1][0].value), op.args[2]
    shape = (*index.elements.shape, *base.elements.shape[1:])
    given = scope.region(values.value)
    updates = Region(variable=given.variable, elements=np.broadcast_to(given.elements, shape))
    width = math.prod(base.elements.shape[1:])
    scatter_rows(
        scope,
        _rows(_out(scope, op), 0),
        reshaped(index, -1),
        reshaped(updates, index.elements.size, width),
        base=_rows(base, 0),
        wraps=True,
    )


def _embedding_backward(scope: Scope, op: Op) -> None:
    """aten.embedding_dense_backward(grad, index, num_weights, padding_idx, scale_grad_by_freq=False)"""
    grad, index, out = scope.region(op.args[0].value), scope.region(op.args[1].value), _out(scope, op)
    updates = reshaped(grad, index.elements.size, out.elements.shape[1])
    scatter_rows(scope, out, reshaped(index, -1), updates, skip=op.args[3])


def _scatter(scope: Scope, op: Op) -> None:
    """popgeo.scatter_sum(src, index, num_rows), popgeo.scatter_mul alike"""
    updates, index = scope.region(op.args[0].value), scope.region(op.args[1].value)
    scatter_rows(scope, _out(scope, op), index, updates, how="prod" if "scatter_mul" in op.target else "sum")


def _extremum(scope: Scope, op: Op) -> None:
    """popgeo.scatter_max(src, index, num_rows) -> (out, arg): a tile sees all updates of its columns."""
    updates, index = scope.region(op.args[0].value), scope.region(op.args[1].value)
    out = _out(scope, op)
    arg = None if op.outputs[1] is None else scope.region(op.outputs[1])
    builder = scope.builder
    num_rows, columns = out.elements.shape
    column_cuts = cuts(columns, builder.num_tiles)
    at = np.zeros((num_rows, columns), np.int32)
    for tile, narrow in enumerate(column_cuts):
        at[:, narrow] = tile
    found = builder.partial(scope.label, builder.dtype(out), at)
    where = builder.partial(scope.label, torch.int64, at)
    builder.compute(
        f"{scope.label}: find",
        [
            Vertex(
                tile=tile,
                operation=op.target,
                reads=(part(updates, slice(None), narrow), index),
                writes=(part(found, slice(None), narrow), part(where, slice(None), narrow)),
                arguments=(Operand(0), Operand(1), num_rows),
            )
            for tile, narrow in enumerate(column_cuts)
            if out.elements.size
        ],
    )
    copy(scope, out, found)
    if arg is not None:
        copy(scope, arg, where)


def _cfconv(scope: Scope, op: Op) -> None:
    """popgeo.cfconv(x, w, src, dst, num_nodes): out[dst] += x[src] * w"""
    x, w, src, dst = (scope.region(arg.value) for arg in op.args[:4])
    scatter_rows(scope, _out(scope, op), dst, gather_rows(scope, x, src), factor=w)


def _cfconv_backward(scope: Scope, op: Op) -> None:
    """popgeo.cfconv_backward(grad, x, w, src, dst) -> (grad_x, grad_w)"""
    grad, x, w, src, dst = (scope.region(arg.value) for arg in op.args[:5])
    arrived = gather_rows(scope, grad, dst)
    if op.outputs[1] is not None:
        multiply(scope, scope.region(op.outputs[1]), gather_rows(scope, x, src), arrived)
    if op.outputs[0] is not None:
        scatter_rows(scope, scope.region(op.outputs[0]), src, arrived, factor=w)


def _gather_csr(scope: Scope, op: Op) -> None:
    """popgeo.gather_csr(x, indptr, num_edges)"""
    table, out = scope.region(op.args[0].value), _out(scope, op)
    gather_rows(scope, table, _rows_of_edges(scope, scope.region(op.args[1].value), op.args[2]), out)


def _segment_sum(scope: Scope, op: Op) -> None:
    """popgeo.segment_sum(src, indptr)"""
    updates, out = scope.region(op.args[0].value), _out(scope, op)
    index = _rows_of_edges(scope, scope.region(op.args[1].value), updates.elements.shape[0])
    scatter_rows(scope, out, index, updates)


def _rows_of_edges(scope: Scope, pointers: Region, num_edges: int) -> Region:
    """The row of each edge from where each row's edges start; -1 for edges of no row."""
    builder = scope.builder
    edge_cuts = cuts(num_edges, builder.num_tiles)
    at = np.zeros(num_edges, np.int32)
    for tile, some in enumerate(edge_cuts):
        at[some] = tile
    index = builder.partial(scope.label, torch.int64, at)
    builder.compute(
        f"{scope.label}: rows of edges",
        [
            Vertex(
                tile=tile,
                operation="rows of edges",
                reads=(pointers,),
                writes=(part(index, some),),
                arguments=(Operand(0), some.start, some.stop),
            )
            for tile, some in enumerate(edge_cuts)
            if num_edges
        ],
    )
    return index


def _rows(region: Region, dim: int) -> Region:
    """As a matrix whose rows are what a dimension counts."""
    moved = np.moveaxis(region.elements, dim, 0)
    return Region(variable=region.variable, elements=moved.reshape(moved.shape[0], math.prod(moved.shape[1:])))


def _row_index(scope: Scope, op: Op) -> Region:
    """The index of rows; one of elements says the same along the other dimensions."""
    index, dim = scope.region(op.args[2].value), op.args[1]
    return part(_rows(index, dim), slice(None), 0) if index.elements.ndim > 1 else index


def _names_rows(scope: Scope, op: Op) -> bool:
    """Whether an index of elements picks whole rows: it is expanded over the other dimensions, and covers them."""
    index = scope.value(op.args[2].value)
    if not index.shape:
        return False
    dim = op.args[1] % len(index.shape)
    others = [d for d in range(len(index.shape)) if d != dim]
    shapes = [scope.value(arg.value).shape for arg in (op.args[0], *op.args[3:4])]
    covers = all(shape[d] == index.shape[d] for shape in shapes for d in others)
    return covers and index.numel > 0 and all(index.shape[d] == 1 or index.stride[d] == 0 for d in others)


def _one_index(scope: Scope, op: Op) -> bool:
    """Whether one integer index picks along one dimension."""
    given = [index for index in op.args[1] if index is not None]
    if len(given) != 1 or not isinstance(given[0], Ref) or op.args[1][-1] is None:
        return False
    index = scope.value(given[0].value)
    dim = len(op.args[1]) - 1
    plain = dim == 0 or len(index.shape) == 1
    return plain and index.dtype in (torch.int64, torch.int32) and (dim == 0 or op.target.startswith("aten.index."))


def _out(scope: Scope, op: Op) -> Region:
    made = op.outputs[0]
    assert made is not None
    return scope.region(made)


_LOWERINGS: dict[str, Callable[[Scope, Op], Any]] = {
    "popgeo.gather": _gather,
    "aten.embedding": _gather,
    "aten.index_select": _index_select,
    "aten.gather": _index_select,
    "aten.index": _index,
    "aten.index_add": _index_add,
    "aten.index_add_": _index_add,
    "aten.scatter_add": _index_add,
    "aten.scatter_add_": _index_add,
    "aten.index_put": _index_put,
    "aten.index_put_": _index_put,
    "aten.embedding_dense_backward": _embedding_backward,
    "popgeo.scatter_sum": _scatter,
    "popgeo.scatter_mul": _scatter,
    "popgeo.scatter_max": _extremum,
    "popgeo.scatter_min": _extremum,
    "popgeo.cfconv": _cfconv,
    "popgeo.cfconv_backward": _cfconv_backward,
    "popgeo.gather_csr": _gather_csr,
    "popgeo.segment_sum": _segment_sum,
}

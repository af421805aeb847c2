"""Lowers operations on rows at an index. The C function checks the range of the index before it writes anything."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.engine.program.native_call import NativeCall
from popgeo.engine.program.strided import TYPES, Area, Unfit, lowers, require

_READ, _WRITE, _ADD = range(3)
_NONE = -(2**40)  # marks that there is no row


def _rows(tensor: Tensor, outer: int, count: int, width: int) -> tuple[int, int]:
    """Return the bytes between tables and between rows of a tensor whose rows each lie in one piece."""
    try:
        steps = tensor.view(outer, count, width).stride()
    except RuntimeError:
        require(False)
    require(width == 1 or steps[2] == 1)
    return steps[0] * tensor.itemsize, steps[1] * tensor.itemsize


def _moved(
    code: int, table: Tensor, rows: Tensor, index: Tensor, dim: int = 0, first: Tensor | None = None, **others: int
) -> NativeCall:
    """Return the call that moves rows of a table at an index along one dimension.

    Args:
        code: Whether rows are read from the table, written to it, or added to it.
        table: The table.
        rows: One row for each entry of the index; the dimensions of the index replace the dimension of the table.
        index: Numbers of rows.
        dim: Dimension along which the table has rows.
        first: What the table is before rows are written to it or added to it.
        others: `is_cyclic`: whether negative numbers count from the end. `left_out`: a row that never changes.
    """
    require(index.dtype in (torch.int64, torch.int32))
    outer, width = math.prod(table.shape[:dim]), math.prod(table.shape[dim + 1 :])
    require(rows.dtype is table.dtype and rows.numel() == outer * index.numel() * width)
    require(code != _ADD or (table.dtype in TYPES and table.dtype is not torch.bool))
    areas = [Area.of(one, moved=True) for one in (table, rows, *([] if first is None else [first]))]
    numbers, out, others_read = Area.of(index), areas[code == _READ], [areas[code != _READ], *areas[2:]]
    first_bytes = 0 if code == _READ else table.nbytes
    require(code == _READ or table.is_contiguous())
    if first is not None:
        require(first.is_contiguous() and first.shape == table.shape and first.dtype is table.dtype)
        require(not areas[2].overlaps(areas[0]) or code == _READ)
    require(not out.repeats() and not any(out.overlaps(one) for one in (numbers, others_read[0])))
    require(out.address not in (numbers.address, others_read[0].address) or out.span() == (0, 0))
    places = _rows(table, outer, table.shape[dim], width), _rows(rows, outer, index.numel(), width)
    kind = TYPES[table.dtype] if code == _ADD else areas[0].kind
    (step,) = (1,) if index.numel() <= 1 else index.reshape(-1).stride() if index.is_contiguous() else index.stride()
    froms, to = (0, 1) if code == _READ else (1, 0)
    words = [
        code, kind, width, outer,
        numbers.address, numbers.kind, step, index.numel(),
        table.shape[dim], others.get("is_cyclic", 0), others.get("left_out", _NONE),
        areas[froms].address, *places[froms], areas[to].address, *places[to],
        areas[to].address if code == _READ or first is table else 0 if first is None else areas[2].address, first_bytes,
    ]  # fmt: skip
    return NativeCall(function="popgeo_row_moves", words=np.array(words, np.int64))


@lowers("aten.index_select.default")
def lower_index_select(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower rows at an index along any dimension."""
    table = given["self"]
    require(table.dim() > 0)
    return _moved(_READ, table, results[0], given["index"], given["dim"] % table.dim())


@lowers("aten.embedding.default")
def lower_embedding(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower rows of an embedding."""
    return _moved(_READ, given["weight"], results[0], given["indices"])


@lowers("aten.index.Tensor")
def lower_index(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower rows at one index tensor, the first."""
    return _moved(_READ, given["self"], results[0], _only(given["indices"]), is_cyclic=1)


@lowers("aten.index_add.default", "aten.index_add_.default", "aten.scatter_add.default", "aten.scatter_add_.default")
def lower_index_add(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower sums at an index, in the order of the index."""
    table, rows, index = given["self"], given.get("source", given.get("src")), given["index"]
    require(table.dim() > 0 and given.get("alpha", 1) == 1)
    dim = given["dim"] % table.dim()
    if "src" in given:
        require(table.dim() == 1)
        rows = rows[: len(index)]
    require(index.dim() <= 1)
    return _moved(_ADD, results[0], rows, index, dim, _before(table, results[0]))


@lowers("aten.index_put.default", "aten.index_put_.default")
def lower_index_put(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower rows that are written or added at one index tensor, the first."""
    table, index = given["self"], _only(given["indices"])
    rows = given["values"].expand(*index.shape, *table.shape[1:])
    code = _ADD if given["accumulate"] else _WRITE
    return _moved(code, results[0], rows, index, 0, _before(table, results[0]), is_cyclic=1)


@lowers("aten.embedding_dense_backward.default")
def lower_embedding_backward(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower the gradient of an embedding; the row of the padding stays 0."""
    require(not given["scale_grad_by_freq"])
    left_out = given["padding_idx"] if given["padding_idx"] >= 0 else _NONE
    return _moved(_ADD, results[0], given["grad_output"], given["indices"], left_out=left_out)


def _before(table: Tensor, result: Tensor) -> Tensor:
    """Return what a result is before rows are added: itself if the operation changes its operand in place."""
    return result if table.data_ptr() == result.data_ptr() else table


def _only(indices: list[Tensor | None]) -> Tensor:
    """Return the only index tensor, which indexes the first dimension with numbers."""
    index, *others = indices
    if index is None or index.dtype not in (torch.int64, torch.int32) or any(one is not None for one in others):
        raise Unfit
    return index

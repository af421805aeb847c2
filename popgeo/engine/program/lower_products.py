"""Matrix products by the compiled library: twice as fast as torch with AMD's AVX-512, a little faster with AVX2.

A row of the result does not depend on the other rows, on the number of threads, or on AVX2 against AVX-512.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.engine.fuse.sums_in_order import PRODUCT, ROW_SUM
from popgeo.engine.program.native_call import LOWERINGS, NativeCall, native_call
from popgeo.native import library

_LARGE = 1 << 18  # elements of a matrix; torch cuts larger ones into more and smaller blocks
_TURNED = 1 << 13  # elements of a transposed matrix that are copied for a few rows
_FEW = 16  # rows; for more, a transposed matrix may be large
_NUM_THREADS = 19  # of products.h: the word with the number of threads


def lower_product(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall | None:
    """Return the native call of a product of matrices; None if torch's function is faster or needed."""
    multiplies = library.function("popgeo_multiplies", "", "q")
    values = [graph.values[v] for v in (*op.reads(), *op.makes())]
    operands = [tensors[v] for v in (*op.reads(), *op.makes())]
    is_plain = len({value.dtype for value in values}) == 1 and not any(any(value.marks) for value in values)
    is_float = values[0].dtype in (torch.float32, torch.float64)
    if multiplies is None or not multiplies() or op.kwargs or not (is_plain and is_float):
        return None
    if not _is_served([value.shape for value in values], [value.stride for value in values]):
        return None
    return native_call("popgeo_multiply", *words_of_product(operands), num_threads=_NUM_THREADS)


def lower_known_product(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall | None:
    """Return the native call of a product that `sums_in_order` has prepared, of vectors too."""
    first, a, b, in_order = op.args
    a, b, out = tensors[a.value], tensors[b.value], tensors[op.makes()[0]]
    if b.dim() == 1:
        b, out = b.unsqueeze(-1), out.unsqueeze(-1)
    if a.dim() == 1:
        a, out = a.unsqueeze(0), out.unsqueeze(0)
    begun = [] if first is None else [tensors[first.value]]
    return native_call("popgeo_multiply", *words_of_product([*begun, a, b, out], in_order), num_threads=_NUM_THREADS)


def lower_row_sum(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall | None:
    """Return the native call of a sum of rows: a product with a row of ones."""
    ref, dim = op.args
    rows, out = tensors[ref.value], tensors[op.makes()[0]]
    form = (rows.shape[dim], out.numel()), (rows.stride(dim), 1)
    matrix = rows.as_strided(*form, rows.storage_offset())
    one = torch.ones(1, 1, dtype=rows.dtype)
    words = words_of_product([one.expand(1, rows.shape[dim]), matrix, out.view(1, -1)], in_order=True)
    return replace(native_call("popgeo_multiply", *words, num_threads=_NUM_THREADS), held=one)


def _is_served(shapes: Sequence[Sequence[int]], strides: Sequence[Sequence[int]]) -> bool:
    """Return whether the library takes operands and a result of these shapes and strides, faster than torch.

    Args:
        shapes: Shapes of the addend if there is one, the two factors, and the result.
        strides: Strides of the same tensors.
    """
    (*_, num_rows, num_inner), (*_, num_columns) = shapes[-3:-1]
    (*_, a_rows, a_inner), (*_, b_columns), (*_, out_rows, out_columns) = strides[-3:]
    first = shapes[0] if len(shapes) == 4 else (num_columns,)  # the addend of addmm: a row, or a matrix
    adds_rows = first[-1:] == (num_columns,) and first[:-1] in ((), (1,), (num_rows,)) and strides[0][-1] == 1
    is_begun, is_turned = len(shapes) == 4, num_inner > 1 and a_inner != 1
    return (
        min(num_rows, num_inner, num_columns) > 0
        and (not is_begun or adds_rows)
        and (not is_turned or num_rows == 1 or a_rows == 1)
        and (b_columns == 1 or num_rows >= _FEW or num_inner * num_columns <= _TURNED)
        and (num_columns > 1 or not is_turned or (out_rows == 1 and not is_begun))
        and out_columns == 1
        and min(num_inner, num_rows) * num_columns <= _LARGE
    )


def words_of_product(tensors: Sequence[Tensor], in_order: bool = False) -> Sequence[int]:
    """Return the structure of products.h for the operands and the result."""
    *first, a, b, out = tensors
    (num_rows, num_inner), num_columns = a.shape[-2:], b.shape[-1]
    a_inner = 1 if num_inner == 1 else a.stride(-1)
    begun = first[0].expand(out.shape) if first else None
    return (
        a.data_ptr(), b.data_ptr(), 0 if begun is None else begun.data_ptr(), out.data_ptr(),
        out.dtype is torch.float64, len(out) if out.dim() == 3 else 1, num_rows, num_inner, num_columns,
        a.stride(-2), a_inner, b.stride(-2), b.stride(-1),
        0 if begun is None else begun.stride(-2), out.stride(-2),
        *(one.stride(0) if one is not None and one.dim() == 3 else 0 for one in (a, b, begun, out)),
        1, in_order,
    )  # fmt: skip


LOWERINGS |= dict.fromkeys(("aten.mm.default", "aten.addmm.default", "aten.bmm.default"), lower_product)
LOWERINGS |= {PRODUCT: lower_known_product, ROW_SUM: lower_row_sum}

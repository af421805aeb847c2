"""Matrix products by the compiled library: twice as fast as torch with AMD's AVX-512, a little faster with AVX2.

A row of the result does not depend on the other rows, on the number of threads, or on AVX2 against AVX-512.
"""

import struct
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph, Ref
from popgeo.engine.fuse.prepared import PreparedCall, late_arguments
from popgeo.native import library

TARGETS = "aten.mm.default", "aten.addmm.default", "aten.bmm.default"
# Outside these limits torch is faster.
_LARGE = 1 << 18  # elements of a matrix; torch cuts larger ones into more and smaller blocks
_SMALL = 512  # multiplications of a product
_NARROW = 4  # columns; fewer leave most of a vector register empty
_FEW = 16  # rows; for fewer, copying a transposed matrix takes too long
_pack = struct.Struct("20q").pack


def prepare_product(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> PreparedCall | None:
    """Return the call of a product whose result has a place; None if torch's function is faster or needed."""
    multiplies = library.function("popgeo_multiplies", "", "q")
    native = library.packed("popgeo_multiply") if multiplies is not None and multiplies() else None
    operands = [arg.value for arg in op.args if isinstance(arg, Ref)]
    (made,) = op.makes()
    values = [graph.values[v] for v in (*operands, made)]
    is_plain = len({value.dtype for value in values}) == 1 and not any(any(value.marks) for value in values)
    is_float = values[0].dtype in (torch.float32, torch.float64)
    if native is None or op.kwargs or not (is_plain and is_float and made in tensors):
        return None
    if not _is_served([value.shape for value in values], [value.stride for value in values]):
        return None
    late, _ = late_arguments(op, tensors)
    calls: dict[int, bytes] = {}

    def call(*given: Tensor) -> None:
        num_threads = torch.get_num_threads()
        if late or num_threads not in calls:
            places = {**tensors, **dict(zip(late, given, strict=True))}
            known, out = [places[v] for v in operands], tensors[made]
            # The layout of an operand of this run may differ from the captured layout.
            if not _is_served([one.shape for one in (*known, out)], [one.stride() for one in (*known, out)]):
                known = [one.contiguous() for one in known]
            calls[num_threads] = _packed([*known, out], num_threads)
        native(calls[num_threads])

    return call


def _is_served(shapes: Sequence[Sequence[int]], strides: Sequence[Sequence[int]]) -> bool:
    """Return whether the library takes operands and a result of these shapes and strides, faster than torch.

    Args:
        shapes: Shapes of the addend if there is one, the two factors, and the result.
        strides: Strides of the same tensors.
    """
    (*_, num_rows, num_inner), (*_, num_columns) = shapes[-3:-1]
    (*_, a_rows, a_inner), (*_, b_columns), (*_, out_columns) = strides[-3:]
    first = shapes[0] if len(shapes) == 4 else (num_columns,)  # the addend of addmm: a row, or a matrix
    adds_rows = first[-1:] == (num_columns,) and first[:-1] in ((), (1,), (num_rows,)) and strides[0][-1] == 1
    return (
        num_columns >= _NARROW
        and num_rows * num_inner * num_columns >= _SMALL
        and (len(shapes) == 3 or adds_rows)
        and (num_inner == 1 or a_inner == 1 or num_rows == 1 or a_rows == 1)
        and (b_columns == 1 or num_rows >= _FEW)
        and out_columns == 1
        and min(num_inner, num_rows) * num_columns <= _LARGE
    )


def _packed(tensors: Sequence[Tensor], num_threads: int) -> bytes:
    """Return the structure of products.h for the operands and the result."""
    *first, a, b, out = tensors
    (num_rows, num_inner), num_columns = a.shape[-2:], b.shape[-1]
    a_inner = 1 if num_inner == 1 else a.stride(-1)
    begun = first[0].expand(num_rows, num_columns) if first else None
    return _pack(
        a.data_ptr(), b.data_ptr(), 0 if begun is None else begun.data_ptr(), out.data_ptr(),
        out.dtype is torch.float64, len(out) if out.dim() == 3 else 1, num_rows, num_inner, num_columns,
        a.stride(-2), a_inner, b.stride(-2), b.stride(-1),
        0 if begun is None else begun.stride(0), out.stride(-2),
        *(one.stride(0) if one.dim() == 3 else 0 for one in (a, b)), 0, out.stride(0) if out.dim() == 3 else 0,
        num_threads,
    )  # fmt: skip

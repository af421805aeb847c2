"""Products of small matrices by a kernel of ours, where it is faster than torch's."""

import ctypes
import functools
import struct
import time
from collections.abc import Mapping
from enum import Enum

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.engine.fuse.prepared import PreparedCall, PreparedOp, late_arguments, register_prepared
from popgeo.native import library

_pack = struct.Struct("13q").pack
_LEAST, _MOST_COLUMNS, _MOST_DEPTH, _MOST = 4, 256, 4096, 2**26
_MARGIN = 1.2  # noise must not decide, since the two may differ in the last bit


class Kind(Enum):
    """Products that one measurement stands for, with the rows, depth and columns of it."""

    TINY = (32, 32, 32)
    NARROW = (512, 256, 16)
    WIDE = (576, 100, 100)


def prepare_product(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> PreparedCall | None:
    """The call of a product of two matrices, plus a row where there is one; None where torch's is as good."""
    if op.kwargs or late_arguments(op, tensors)[0] or not _is_served():
        return None
    *bias, a, b = (tensors[arg.value] for arg in op.args)
    (result,) = (tensors[v] for v in op.makes())
    if not suits(result, a, b, *bias) or not is_faster(kind_of(a.shape[0], a.shape[1], b.shape[1])):
        return None
    return Product(result, a, b, *bias)


def suits(result: Tensor, a: Tensor, b: Tensor, bias: Tensor | None = None) -> bool:
    """Whether the kernel takes these matrices: float32, rows or columns in a row in memory, neither large nor thin."""
    (rows, depth), columns = a.shape, b.shape[1]
    if min(rows, depth, columns) < _LEAST or columns > _MOST_COLUMNS or depth > _MOST_DEPTH:
        return False
    given = [result, a, b] if bias is None else [result, a, b, bias]
    plain = all(t.dtype == torch.float32 for t in given) and result.is_contiguous()
    plain = plain and (bias is None or (bias.is_contiguous() and bias.shape == (columns,)))
    return plain and 1 in a.stride() and 1 in b.stride() and rows * columns * depth <= _MOST


def kind_of(rows: int, depth: int, columns: int) -> Kind:
    """Which measurement stands for a product of this size.

    Example:
        >>> kind_of(2708, 1433, 16), kind_of(100, 576, 100)
        (<Kind.NARROW: (512, 256, 16)>, <Kind.WIDE: (576, 100, 100)>)
    """
    if rows * depth * columns <= 2**17:
        return Kind.TINY
    return Kind.NARROW if columns <= 32 else Kind.WIDE


@functools.cache
def is_faster(kind: Kind) -> bool:
    """Whether our kernel is clearly faster than torch's on this processor, measured once, at one thread."""
    rows, depth, columns = kind.value
    a, b, result = torch.ones(rows, depth), torch.ones(columns, depth).t(), torch.empty(rows, columns)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torchs, repeats = functools.partial(torch.mm, a, b, out=result), 1 + 2**20 // (rows * depth * columns)
        return _MARGIN * _seconds(Product(result, a, b), repeats) < _seconds(torchs, repeats)
    finally:
        torch.set_num_threads(before)


def _seconds(call: PreparedCall, repeats: int) -> float:
    turns = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        turns.append(time.perf_counter() - start)
    return min(turns)


def _is_served() -> bool:
    asks = library.function("popgeo_matrix_product_is_served", (), ctypes.c_int64)
    return asks is not None and bool(asks())


class Product:
    """A call of the kernel on matrices that stay where they are, and `suits` allows."""

    def __init__(self, result: Tensor, a: Tensor, b: Tensor, bias: Tensor | None = None) -> None:
        native = library.packed("popgeo_matrix_product")
        size = library.packed("popgeo_matrix_product_workspace")
        assert native is not None, "asked for only where the library is available"
        assert size is not None
        self._native = native
        self._structures: dict[int, bytes] = {}
        places = [a.data_ptr(), b.data_ptr(), 0 if bias is None else bias.data_ptr(), result.data_ptr()]
        sizes = [a.shape[0], b.shape[1], a.shape[1], *a.stride(), *b.stride()]
        self._workspace = np.empty(size(_pack(*places, 0, *sizes, 1)), np.float32)
        self._given = *places, self._workspace.ctypes.data, *sizes
        self._keeps = result, a, b, bias

    def __call__(self) -> None:
        num_threads = torch.get_num_threads()
        structure = self._structures.get(num_threads)
        if structure is None:
            structure = self._structures[num_threads] = _pack(*self._given, num_threads)
        self._native(structure)


register_prepared("aten.mm.default", PreparedOp(prepare=prepare_product))
register_prepared("aten.addmm.default", PreparedOp(prepare=prepare_product))

"""popgeo::scatter_max and popgeo::scatter_min: the extreme row per index, and where it came from."""

import ctypes
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops import reference
from popgeo.ops.gather_scatter import NO_PLAN, check_sum
from popgeo.ops.kernel_arguments import NATIVE_DTYPES, as_int64, check_plan_tensors, filled, pointer
from popgeo.ops.refusals import explain, refuse_index
from popgeo.ops.register_op import register

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_EXTREMUM = (_INT, _INT, *[_POINTER] * 6, *[_INT] * 5)


def _extremum(src: Tensor, index: Tensor, num_rows: int, *plan: Any, largest: bool) -> tuple[Tensor, Tensor]:
    check_sum(src, index, num_rows)
    rowptr, perm, num_tiles = filled(plan, NO_PLAN)
    native = library.function("popgeo_scatter_extremum", _EXTREMUM, _INT)
    if native is None or src.device.type != "cpu" or src.dtype not in NATIVE_DTYPES:
        refuse_index("index", index, num_rows)
        return reference.scatter_extremum(src, index, num_rows, largest=largest)
    num_edges, channels = src.shape
    if rowptr is not None:
        rowptr, perm = check_plan_tensors("index", index, num_rows, rowptr, perm)
    src, index = src.contiguous(), as_int64(index)
    out = src.new_empty(num_rows, channels)
    arg = index.new_empty(num_rows, channels)
    pointers = map(pointer, (src, index, rowptr, perm, out, arg))
    sizes = num_edges, num_rows, channels, num_tiles, torch.get_num_threads()
    if native(int(largest), NATIVE_DTYPES[src.dtype], *pointers, *sizes):
        explain("index", index, num_rows, rowptr, perm)
    return out, arg


def _fake(src: Tensor, index: Tensor, num_rows: int, *plan: Any) -> tuple[Tensor, Tensor]:
    check_sum(src, index, num_rows)
    shape = (num_rows, src.shape[1])
    return src.new_empty(shape), src.new_empty(shape, dtype=torch.int64)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.num_edges = inputs[0].shape[0]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    (arg,) = ctx.saved_tensors
    # One row more than there are edges takes the gradients of rows where nothing arrived.
    grad_src = grad.new_zeros(ctx.num_edges + 1, grad.shape[1]).scatter(0, arg, grad)[:-1]
    return grad_src, *[None] * 5


_ARGUMENTS = "(Tensor src, Tensor index, SymInt num_rows, Tensor? rowptr=None, Tensor? perm=None, int num_tiles=0)"
# (src, index, num_rows, *plan): the largest or smallest entry per row and channel, and the edge it came from.
scatter_max_rows, scatter_min_rows = (
    register(
        f"{name}{_ARGUMENTS} -> (Tensor out, Tensor arg)",
        kernel=partial(_extremum, largest=largest),
        fake=_fake,
        setup_context=_save,
        backward=_differentiate,
    )
    for name, largest in (("scatter_max", True), ("scatter_min", False))
)

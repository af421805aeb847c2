"""The reductions other than sums: popgeo::scatter_max, scatter_min, segment_max, segment_min and scatter_mul.

Extremes come with their edges. The gradients of products are correct at zeros.
"""

import struct
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from popgeo.native import library
from popgeo.ops import reference, sum_on_device
from popgeo.ops.gather_scatter import (
    NO_PLAN,
    SCATTER_ARGUMENTS,
    check_sum,
    fake_sum,
    gather_rows,
    pack_sum,
    rows_of_ends,
)
from popgeo.ops.kernel_arguments import NATIVE_DTYPES, as_int64, check_plan_tensors, filled
from popgeo.ops.refusals import explain, refuse_index
from popgeo.ops.register_op import register
from popgeo.ops.segment_sum import check_indptr, row_of_each_edge, segments_in_kernel

_pack_extremum = struct.Struct("13q").pack  # ExtremumCall


def _extremum(src: Tensor, index: Tensor, num_rows: int, *plan: Any, largest: bool) -> tuple[Tensor, Tensor]:
    check_sum(src, index, num_rows)
    _check_order(src)
    rowptr, perm, num_tiles = filled(plan, NO_PLAN)
    if sum_on_device.serves(src):
        rowptr, perm = check_plan_tensors("index", index, num_rows, rowptr, perm)
        return sum_on_device.scatter_extremum(src, index, num_rows, rowptr, perm, largest)
    native = library.packed("popgeo_scatter_extremum")
    if native is None or src.device.type != "cpu" or src.dtype not in NATIVE_DTYPES:
        refuse_index("index", index, num_rows)
        return reference.scatter_extremum(src, index, num_rows, largest=largest)
    num_edges, channels = src.shape
    rowptr, perm = check_plan_tensors("index", index, num_rows, rowptr, perm)
    src, index = src.contiguous(), as_int64(index)
    out = src.new_empty(num_rows, channels)
    arg = index.new_empty(num_rows, channels)
    pointers = map(library.address, (src, index, rowptr, perm, out, arg))
    sizes = num_edges, num_rows, channels, num_tiles, torch.get_num_threads()
    if native(_pack_extremum(largest, NATIVE_DTYPES[src.dtype], *pointers, *sizes)):
        explain("index", index, num_rows, rowptr, perm)
    return out, arg


def _segment_extremum(src: Tensor, indptr: Tensor, *, largest: bool) -> tuple[Tensor, Tensor]:
    check_indptr(indptr)
    _check_order(src)
    arg = src.new_empty(indptr.shape[0] - 1, src.shape[1], dtype=torch.int64)
    out = segments_in_kernel(1 + largest, src, indptr, arg)
    if out is not None:
        return out, arg
    index = row_of_each_edge(indptr, src.shape[0])  # an additional row is for the edges outside the pointers
    if sum_on_device.serves(src):
        ends = F.pad(indptr, (0, 1), value=src.shape[0]).int()
        out, arg = sum_on_device.scatter_extremum(src, index, indptr.shape[0], ends, None, largest)
    else:
        out, arg = reference.scatter_extremum(src, index, indptr.shape[0], largest=largest)
    return out[:-1], arg[:-1]


def _check_order(src: Tensor) -> None:
    if src.dtype is torch.bool or src.is_complex():
        raise ValueError(f"src has dtype {src.dtype}, which has no largest entry. Call src.long() or src.abs().")


def _fake(src: Tensor, index: Tensor, num_rows: int, *plan: Any) -> tuple[Tensor, Tensor]:
    check_sum(src, index, num_rows)
    shape = (num_rows, src.shape[1])
    return src.new_empty(shape), src.new_empty(shape, dtype=torch.int64)


def _fake_segment(src: Tensor, indptr: Tensor) -> tuple[Tensor, Tensor]:
    check_indptr(indptr)
    shape = (indptr.shape[0] - 1, src.shape[1])
    return src.new_empty(shape), src.new_empty(shape, dtype=torch.int64)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.num_edges = inputs[0].shape[0]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    (arg,) = ctx.saved_tensors
    # An additional row takes the gradients of rows without entries.
    grad_src = grad.new_zeros(ctx.num_edges + 1, grad.shape[1]).scatter(0, arg, grad)[:-1]
    return grad_src, *[None] * (len(ctx.needs_input_grad) - 1)


# The largest or smallest entry per row and channel, and its edge: (src, index, num_rows, *plan) by index, and
# (src, indptr) between consecutive pointers.
scatter_max_rows, scatter_min_rows, segment_max_rows, segment_min_rows = (
    register(
        f"{name}{arguments} -> (Tensor out, Tensor arg)",
        kernel=partial(kernel, largest=name.endswith("max")),
        fake=fake,
        setup_context=_save,
        backward=_differentiate,
    )
    for names, arguments, kernel, fake in (
        (("scatter_max", "scatter_min"), SCATTER_ARGUMENTS, _extremum, _fake),
        (("segment_max", "segment_min"), "(Tensor src, Tensor indptr)", _segment_extremum, _fake_segment),
    )
    for name in names
)


def _scatter_mul(src: Tensor, index: Tensor, num_rows: int, *plan: Any) -> Tensor:
    check_sum(src, index, num_rows)
    if sum_on_device.serves(src):
        rowptr, perm = check_plan_tensors("index", index, num_rows, *filled(plan, NO_PLAN)[:2])
        return sum_on_device.scatter_sum(src, index, num_rows, rowptr, perm, "prod")
    native = library.packed("popgeo_scatter_mul")
    if native is not None and src.is_cpu and src.dtype in NATIVE_DTYPES and src.dtype not in reference.HALVES:
        src, index = src.contiguous(), as_int64(index)
        out = src.new_empty(num_rows, src.shape[1])
        numbers = NATIVE_DTYPES[src.dtype], library.address(src), library.address(index), 0, 0, out.data_ptr()
        if not native(pack_sum(*numbers, src.shape[0], num_rows, src.shape[1], 0, 1)):
            return out
    refuse_index("index", index, num_rows)
    return reference.scatter_mul(src, index, num_rows)


def _differentiate_product(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    src, index, *_ = ctx.saved_tensors
    order = torch.argsort(index, stable=True)
    others = _product_of_others(rows_of_ends(src, order), index.index_select(0, order))
    others = rows_of_ends(others, torch.argsort(order)).conj()
    return gather_rows(grad, index, None, None, 0) * others, *[None] * 5


def _product_of_others(src: Tensor, index: Tensor) -> Tensor:
    """Compute for each edge the product of all other edges of its row, without a division; `index` is sorted.

    It is the product of the earlier edges times the product of the later edges. Derivatives of any order exist.
    """
    return _product_before(src, index) * _product_before(src.flip(0), index.flip(0)).flip(0)


def _product_before(src: Tensor, index: Tensor) -> Tensor:
    """Compute for each edge the product of earlier edges of its row, by a parallel prefix product."""
    product = _shifted(src, index, 1)
    reach = 1
    while reach < src.shape[0]:
        product = product * _shifted(product, index, reach)
        reach *= 2
    return product


def _shifted(src: Tensor, index: Tensor, shift: int) -> Tensor:
    """Return the entry `shift` positions before each edge, or 1 if that entry belongs to a different row."""
    same = (index[shift:] == index[:-shift]).unsqueeze(1)
    ones = torch.ones_like(src[:shift])
    return torch.cat([ones, torch.where(same, src[:-shift], torch.ones_like(src[:-shift]))])


# (src, index, num_rows, *plan): the product of the rows of `src` that share an index. [num_rows, channels]
scatter_mul_rows = register(
    f"scatter_mul{SCATTER_ARGUMENTS} -> Tensor",
    kernel=_scatter_mul,
    fake=fake_sum,
    backward=_differentiate_product,
)

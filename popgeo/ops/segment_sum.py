"""The ops popgeo::segment_sum and popgeo::gather_csr for CSR rows; each op is the derivative of the other.

`segments_in_kernel` and `row_of_each_edge` also serve the extremes of CSR rows, in `scatter_reductions.py`.
"""

import struct
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from popgeo.native import library
from popgeo.ops import reference, sum_on_device
from popgeo.ops.gather_scatter import MIN_PARALLEL, by_parts, is_torch_fast
from popgeo.ops.kernel_arguments import NATIVE_DTYPES, as_int64
from popgeo.ops.register_op import register

_pack = struct.Struct("10q").pack  # SegmentCall
_pack_gather = struct.Struct("6q").pack  # GatherCsrCall


def row_of_each_edge(indptr: Tensor, num_edges: int) -> Tensor:
    """Return the row of each edge, or `num_rows` for an edge outside all rows, after a check. [num_edges]."""
    if indptr.is_cuda:
        edges = torch.arange(num_edges, device=indptr.device, dtype=indptr.dtype)
        row = torch.searchsorted(indptr, edges, right=True) - 1
        _require_pointers(indptr, num_edges)
        return torch.where(row < 0, indptr.shape[0] - 1, row)
    first, last = _check_pointers(indptr, num_edges)
    sizes = torch.cat([indptr.diff(), indptr.new_tensor([num_edges - last])])
    row = torch.repeat_interleave(sizes.long(), output_size=num_edges - first)
    return row if first == 0 else F.pad(row, (first, 0), value=len(indptr) - 1)


def _climb(indptr: Tensor, num_edges: int) -> Tensor:
    """Check whether pointers never descend and never exceed the number of edges. []."""
    return (indptr[1:] >= indptr[:-1]).all() & (indptr[0] >= 0) & (indptr[-1] <= num_edges)


def _what_is_wrong(indptr: Tensor, num_edges: int) -> str:
    descends = indptr[1:] < indptr[:-1]
    if descends.any():
        position = int(descends.nonzero()[0]) + 1
        return (
            f"indptr[{position}] is {int(indptr[position])}, below indptr[{position - 1}], which is "
            f"{int(indptr[position - 1])}; pointers may not descend."
        )
    return (
        f"indptr runs from {int(indptr[0])} to {int(indptr[-1])}; allowed are 0 to {num_edges}, the number of entries."
    )


def _check_pointers(indptr: Tensor, num_edges: int) -> tuple[int, int]:
    """Return the first and the last pointer, after a check that pointers neither descend nor exceed the edges.

    Raises:
        ValueError: the pointers descend, or exceed the edges.
    """
    if not _climb(indptr, num_edges):
        raise ValueError(_what_is_wrong(indptr, num_edges))
    return int(indptr[0]), int(indptr[-1])


def _require_pointers(indptr: Tensor, num_edges: int) -> None:
    """Check pointers on a GPU as `_climb` does, without waiting. A later call of torch raises the error."""
    torch._assert_async(_climb(indptr, num_edges), f"indptr descends, or leaves the {num_edges} entries.")


def check_indptr(indptr: Tensor) -> None:
    """Check the shape and the type of pointers.

    Raises:
        ValueError: a shape or a type does not fit.
    """
    if indptr.dim() != 1 or indptr.shape[0] == 0 or indptr.dtype not in (torch.int64, torch.int32):
        given = f"shape {tuple(indptr.shape)} and dtype {indptr.dtype}"
        raise ValueError(f"indptr has {given}; pass int64 or int32 of shape (num_rows + 1,).")


def _segment_sum(src: Tensor, indptr: Tensor) -> Tensor:
    check_indptr(indptr)
    if src.is_complex():
        return by_parts(_segment_sum, src, indptr)
    num_edges, num_rows = src.shape[0], indptr.shape[0] - 1
    if sum_on_device.serves(src):
        _require_pointers(indptr, num_edges)
        return sum_on_device.scatter_sum(src, indptr, num_rows, indptr, None)
    if not is_torch_fast(num_edges, num_rows, src.shape[1], num_threads=torch.get_num_threads(), by_edge=False):
        out = segments_in_kernel(0, src, indptr, None)
        if out is not None:
            return out
    first, last = _check_pointers(indptr, num_edges)
    return reference.scatter_sum(src[first:last], row_of_each_edge(indptr, num_edges)[first:last], num_rows)


def segments_in_kernel(how: int, src: Tensor, indptr: Tensor, arg: Tensor | None) -> Tensor | None:
    """Reduce the rows of `src` between pointers by the compiled kernel, or return None if it does not serve the call.

    Args:
        how: 0 for the sum, 1 for the smallest entry, 2 for the largest, 3 for the mean of float32 or float64.
        src: Entries. [num_edges, channels]
        indptr: Pointers. [num_rows + 1]
        arg: Memory for the edges of the extremes. [num_rows, channels]

    Raises:
        ValueError: the pointers descend, or exceed the edges.
    """
    native, (num_edges, channels), num_rows = library.packed("popgeo_segment_reduce"), src.shape, indptr.shape[0] - 1
    is_served = src.is_cpu and indptr.is_cpu and src.dtype in NATIVE_DTYPES and num_edges < 2**31
    if native is None or not is_served:
        return None
    src, indptr = src.contiguous(), as_int64(indptr)
    out = src.new_empty(num_rows, channels)
    pointers = map(library.address, (src, indptr, out, arg))
    sizes = num_edges, num_rows, channels, torch.get_num_threads()
    if native(_pack(how, NATIVE_DTYPES[src.dtype], *pointers, *sizes)):
        _check_pointers(indptr, num_edges)
        raise MemoryError("popgeo could not allocate its working memory.")
    return out


def _gather_csr(x: Tensor, indptr: Tensor, num_edges: int) -> Tensor:
    check_indptr(indptr)
    if x.shape[0] != indptr.shape[0] - 1:
        raise ValueError(f"x has {x.shape[0]} rows and indptr {indptr.shape[0]} pointers; pass one more than rows.")
    if indptr.is_cuda and len(x):  # repeat_interleave would wait for the number of rows
        row = row_of_each_edge(indptr, num_edges)
        return torch.where((row < len(x))[:, None], x.index_select(0, row.clamp(max=len(x) - 1)), 0)
    native = library.packed("popgeo_gather_csr")
    # Torch uses several threads.
    is_served = x.dim() == 2 and (torch.get_num_threads() == 1 or num_edges * x.shape[1] <= MIN_PARALLEL)
    if native is not None and is_served and x.is_cpu and indptr.is_cpu:
        x, indptr = x.resolve_conj().contiguous(), as_int64(indptr)
        out = x.new_empty(num_edges, x.shape[1])
        sizes = num_edges, len(x), x.shape[1] * x.element_size()
        if native(_pack_gather(*map(library.address, (x, indptr, out)), *sizes)):
            _check_pointers(indptr, num_edges)
        return out
    first, last = _check_pointers(indptr, num_edges)
    inside = torch.repeat_interleave(x, indptr.diff(), dim=0)
    return inside if (first, last) == (0, num_edges) else F.pad(inside, (0, 0, first, num_edges - last))


def _fake_segment_sum(src: Tensor, indptr: Tensor) -> Tensor:
    check_indptr(indptr)
    return src.new_empty(indptr.shape[0] - 1, src.shape[1])


def _fake_gather_csr(x: Tensor, indptr: Tensor, num_edges: int) -> Tensor:
    check_indptr(indptr)
    return x.new_empty(num_edges, x.shape[1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    src, indptr, *_ = inputs
    ctx.num_edges = src.shape[0]  # only the derivative of the sum reads it
    ctx.save_for_backward(indptr)


def _differentiate_segment_sum(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (indptr,) = ctx.saved_tensors
    return gather_csr_rows(grad, indptr, ctx.num_edges), None


def _differentiate_gather_csr(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (indptr,) = ctx.saved_tensors
    return segment_sum_rows(grad, indptr), None, None


# (src, indptr): the sums of the rows of `src` between consecutive pointers. [num_rows, channels]
segment_sum_rows = register(
    "segment_sum(Tensor src, Tensor indptr) -> Tensor",
    kernel=_segment_sum,
    fake=_fake_segment_sum,
    setup_context=_save,
    backward=_differentiate_segment_sum,
)
# (x, indptr, num_edges): each row of `x` between its pointers, zero outside of them. [num_edges, channels]
gather_csr_rows = register(
    "gather_csr(Tensor x, Tensor indptr, SymInt num_edges) -> Tensor",
    kernel=_gather_csr,
    fake=_fake_gather_csr,
    setup_context=_save,
    backward=_differentiate_gather_csr,
)

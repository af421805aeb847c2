"""popgeo::segment_sum and popgeo::gather_csr: rows given by pointers, each op the derivative of the other."""

from typing import Any

import torch
from torch import Tensor

from popgeo.ops import reference
from popgeo.ops.registration import is_direct, register
from popgeo.ops.rows import sum_compiled


def segment_sum_rows(src: Tensor, indptr: Tensor) -> Tensor:
    """Sums the rows of `src` between consecutive pointers. [num_rows, channels]"""
    return _segment_sum(src, indptr) if is_direct(src, indptr) else torch.ops.popgeo.segment_sum(src, indptr)


def gather_csr_rows(x: Tensor, indptr: Tensor, num_edges: int) -> Tensor:
    """Repeats each row of `x` between its pointers; zero outside of all of them. [num_edges, channels]"""
    direct = is_direct(x, indptr)
    return _gather_csr(x, indptr, num_edges) if direct else torch.ops.popgeo.gather_csr(x, indptr, num_edges)


def row_of_each_edge(indptr: Tensor, num_edges: int) -> Tensor:
    """The row that each edge lies in; `num_rows` for edges outside the pointers. [num_edges]"""
    if is_direct(indptr):
        _check_pointers(indptr, num_edges)
    edges = torch.arange(num_edges, device=indptr.device, dtype=indptr.dtype)
    row = torch.searchsorted(indptr, edges, right=True) - 1
    return torch.where(row < 0, indptr.shape[0] - 1, row)


def _check_pointers(indptr: Tensor, num_edges: int) -> tuple[int, int]:
    """The first and the last pointer, once it is known that they climb within the edges."""
    descends = indptr[1:] < indptr[:-1]
    if descends.any():
        position = int(descends.nonzero()[0]) + 1
        raise ValueError(
            f"indptr[{position}] is {int(indptr[position])}, below indptr[{position - 1}], which is "
            f"{int(indptr[position - 1])}; pointers may not descend."
        )
    first, last = int(indptr[0]), int(indptr[-1])
    if first < 0 or last > num_edges:
        raise ValueError(f"indptr runs from {first} to {last}; allowed are 0 to {num_edges}, the number of entries.")
    return first, last


def _check(indptr: Tensor) -> None:
    if indptr.dim() != 1 or indptr.shape[0] == 0 or indptr.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"indptr has shape {tuple(indptr.shape)} and dtype {indptr.dtype}; "
            "it is an int64 or int32 of (num_rows + 1,)."
        )


def _segment_sum(src: Tensor, indptr: Tensor) -> Tensor:
    _check(indptr)
    first, last = _check_pointers(indptr, src.shape[0])
    num_rows = indptr.shape[0] - 1
    out = sum_compiled(src[first:last], None, num_rows, (indptr - first).int(), None, 0)
    if out is not None:
        return out
    return reference.scatter_sum(src[first:last], row_of_each_edge(indptr, src.shape[0])[first:last], num_rows)


def _gather_csr(x: Tensor, indptr: Tensor, num_edges: int) -> Tensor:
    _check(indptr)
    if x.shape[0] != indptr.shape[0] - 1:
        raise ValueError(
            f"There are {x.shape[0]} rows and {indptr.shape[0]} pointers; pass one pointer more than rows."
        )
    first, last = _check_pointers(indptr, num_edges)
    inside = torch.repeat_interleave(x, indptr.diff(), dim=0)
    if (first, last) == (0, num_edges):
        return inside
    out = x.new_zeros(num_edges, x.shape[1])
    out[first:last] = inside
    return out


def _fake_segment_sum(src: Tensor, indptr: Tensor) -> Tensor:
    _check(indptr)
    return src.new_empty(indptr.shape[0] - 1, src.shape[1])


def _fake_gather_csr(x: Tensor, indptr: Tensor, num_edges: int) -> Tensor:
    _check(indptr)
    return x.new_empty(num_edges, x.shape[1])


def _save_segment_sum(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    src, indptr = inputs
    ctx.num_edges = src.shape[0]
    ctx.save_for_backward(indptr)


def _save_gather_csr(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _differentiate_segment_sum(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (indptr,) = ctx.saved_tensors
    return gather_csr_rows(grad, indptr, ctx.num_edges), None


def _differentiate_gather_csr(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (indptr,) = ctx.saved_tensors
    return segment_sum_rows(grad, indptr), None, None


register(
    "segment_sum(Tensor src, Tensor indptr) -> Tensor",
    kernel=_segment_sum,
    fake=_fake_segment_sum,
    setup_context=_save_segment_sum,
    backward=_differentiate_segment_sum,
)
register(
    "gather_csr(Tensor x, Tensor indptr, SymInt num_edges) -> Tensor",
    kernel=_gather_csr,
    fake=_fake_gather_csr,
    setup_context=_save_gather_csr,
    backward=_differentiate_gather_csr,
)

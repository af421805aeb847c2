"""The ops popgeo::gather (rows to edges) and popgeo::scatter_sum (edges to rows), which are each other's derivative."""

import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops import reference, sum_on_device
from popgeo.ops.eager import is_plain
from popgeo.ops.kernel_arguments import NATIVE_DTYPES, as_int64, check_plan_tensors, filled
from popgeo.ops.refusals import check_index, check_least, explain, refuse_index
from popgeo.ops.register_op import register
from popgeo.ops.scatter_plan import ScatterPlan

_HALVES = (2, 3)  # the numbers of bfloat16 and float16
# Measured limits below which torch is as fast as the kernel.
MIN_DEGREE = 1.0  # edges per row; with fewer most rows are empty, and torch clears them all at once
MIN_STREAM = 1 << 19  # elements; with more the kernel's prefetch is faster even at one edge per row
MIN_PARALLEL = 1 << 15  # elements; with fewer the kernel stays in one thread

NO_PLAN = None, None, 0  # row pointer, order of the edges and tiles of an op without a plan
SCATTER_ARGUMENTS = (
    "(Tensor src, Tensor index, SymInt num_rows, Tensor? rowptr=None, Tensor? perm=None, int num_tiles=0)"
)
pack_sum = struct.Struct("11q").pack  # SumCall


def sum_at_once(src: Tensor, index: Tensor, num_rows: int, plan: ScatterPlan | None) -> Tensor | None:
    """Return the sum by a fast path, in 3 microseconds; None if a call is unusual or invalid.

    A usual call is eager and without gradients, on contiguous tensors in memory, with an int64 index and its own plan.
    """
    native = library.packed("popgeo_scatter_sum") if is_plain() and type(src) is type(index) is Tensor else None
    if native is None or (src.requires_grad and torch.is_grad_enabled()):
        return None
    try:
        rowptr, perm, num_tiles = NO_PLAN if plan is None else (plan.rowptr, plan.perm, plan.num_tiles)
        (num_edges, channels), number, num_threads = src.shape, NATIVE_DTYPES[src.dtype], torch.get_num_threads()
        by_edge = number not in _HALVES
        if (
            not (src.is_cpu and index.is_cpu and src.is_contiguous() and index.is_contiguous())
            or index.dtype is not torch.int64
            or index.shape != (num_edges,)
            or not (plan is None or plan.is_of(index, num_rows))
            or (
                (num_threads > 1 or not by_edge)
                and is_torch_fast(num_edges, num_rows, channels, num_threads=num_threads, by_edge=by_edge)
            )
        ):
            return None
        out = src.new_empty(num_rows, channels)
        pointers = map(library.address, (src, index, rowptr, perm, out))
        call = pack_sum(number, *pointers, num_edges, num_rows, channels, num_tiles, num_threads)
        return None if native(call) else out
    except (ValueError, KeyError, IndexError, RuntimeError):
        return None


def is_torch_fast(num_edges: int, num_rows: int, channels: int, *, num_threads: int, by_edge: bool) -> bool:
    """Check whether `index_add_` sums these rows at least as fast as the compiled kernels; all give the same bits.

    The kernel for one thread goes edge by edge and is never slower than torch. It needs an index and a type that is
    not widened for the sum (`by_edge`). The kernels for several threads and for half precision go row by row, also
    over empty rows. The limits were measured with `benchmarks/scatter_gather.py --only grid`.
    """
    if num_edges >= 2 * MIN_DEGREE * num_rows:
        return False
    if by_edge and (num_threads == 1 or (num_edges + num_rows) * channels <= MIN_PARALLEL):
        return False
    return num_edges < MIN_DEGREE * num_rows or num_edges * channels < MIN_STREAM or channels < 16


def _check_rows(name: str, rows: Tensor) -> None:
    if rows.dim() != 2:
        raise ValueError(f"{name} has shape {tuple(rows.shape)}; it is two-dimensional: (rows, channels).")


def check_sum(src: Tensor, index: Tensor, num_rows: int) -> None:
    """Check the shapes and types of a sum's arguments.

    Raises:
        ValueError: a shape or a type does not fit, or the number of rows is negative.
    """
    _check_rows("src", src)
    check_index("index", index, src.shape[0], src)
    check_least(0, num_rows=num_rows)


def _scatter_sum(src: Tensor, index: Tensor, num_rows: int, *plan: Any) -> Tensor:
    check_sum(src, index, num_rows)
    if src.is_complex():
        return by_parts(_scatter_sum, src, index, num_rows, *plan)
    rowptr, perm, num_tiles = filled(plan, NO_PLAN)
    if sum_on_device.serves(src):
        rowptr, perm = check_plan_tensors("index", index, num_rows, rowptr, perm)
        return sum_on_device.scatter_sum(src, index, num_rows, rowptr, perm)
    native = library.packed("popgeo_scatter_sum")
    (num_edges, channels), num_threads, by_edge = src.shape, torch.get_num_threads(), src.dtype not in reference.HALVES
    if (
        native is None
        or not src.is_cpu
        or src.dtype not in NATIVE_DTYPES
        or is_torch_fast(num_edges, num_rows, channels, num_threads=num_threads, by_edge=by_edge)
    ):
        _check_memory(index)
        try:
            return reference.scatter_sum(src, index, num_rows)
        except (IndexError, RuntimeError):
            refuse_index("index", index, num_rows)
            raise
    src = src.contiguous()
    out = src.new_empty(num_rows, channels)
    rowptr, perm = check_plan_tensors("index", index, num_rows, rowptr, perm)
    index = as_int64(index)
    pointers = map(library.address, (src, index, rowptr, perm, out))
    sizes = num_edges, num_rows, channels, num_tiles, num_threads
    if native(pack_sum(NATIVE_DTYPES[src.dtype], *pointers, *sizes)):
        explain("index", index, num_rows, rowptr, perm)
    return out


def by_parts(kernel: Callable[..., Tensor], src: Tensor, *arguments: Any) -> Tensor:
    """Sum complex rows by a kernel for real ones, with real and imaginary parts as channels."""
    total = kernel(torch.view_as_real(src.resolve_conj()).flatten(1), *arguments)
    return torch.view_as_complex(total.view(total.shape[0], src.shape[1], 2))


def _gather(x: Tensor, index: Tensor, *plan: Any) -> Tensor:
    _check_rows("x", x)
    check_index("index", index, index.numel(), x)
    _check_memory(index)
    try:
        if x.shape[1] == 1:  # torch selects from a vector three times as fast
            return x.reshape(-1).index_select(0, index).unsqueeze(1)
        return x.index_select(0, index)
    except (IndexError, RuntimeError):
        refuse_index("index", index, x.shape[0])
        raise


def _check_memory(index: Tensor) -> None:
    """Raise a ValueError for an index without values, which torch would read out of bounds."""
    if index.is_cpu:
        library.address(index)


def fake_sum(src: Tensor, index: Tensor, num_rows: int, *plan: Any) -> Tensor:
    """Return an uninitialized result, [num_rows, channels], after the checks."""
    check_sum(src, index, num_rows)
    return src.new_empty(num_rows, src.shape[1])


def _fake_gather(x: Tensor, index: Tensor, *plan: Any) -> Tensor:
    _check_rows("x", x)
    check_index("index", index, index.numel(), x)
    return x.new_empty(index.shape[0], x.shape[1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, index, *_, rowptr, perm, ctx.num_tiles = inputs
    ctx.num_rows = x.shape[0]  # only the derivative of gather reads it
    ctx.save_for_backward(index, rowptr, perm)


def _differentiate_sum(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    index, rowptr, perm = ctx.saved_tensors
    return gather_rows(grad, index, rowptr, perm, ctx.num_tiles), *[None] * 5


def _differentiate_gather(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    index, rowptr, perm = ctx.saved_tensors
    return scatter_sum_rows(grad, index, ctx.num_rows, rowptr, perm, ctx.num_tiles), *[None] * 4


# (src, index, num_rows, *plan): sums of the rows of `src` that share an index, each in the order of the edges.
scatter_sum_rows = register(
    f"scatter_sum{SCATTER_ARGUMENTS} -> Tensor",
    kernel=_scatter_sum,
    fake=fake_sum,
    setup_context=_save,
    backward=_differentiate_sum,
)
# (x, index, *plan): the row of `x` at each edge's index. [num_edges, channels]
gather_rows = register(
    "gather(Tensor x, Tensor index, Tensor? rowptr=None, Tensor? perm=None, int num_tiles=0) -> Tensor",
    kernel=_gather,
    fake=_fake_gather,
    setup_context=_save,
    backward=_differentiate_gather,
)


def rows_along(x: Tensor, index: Tensor, dim: int, *plan: Any) -> Tensor:
    """Return the entry of `x` at each index along a dimension, as `x.index_select(dim, index)`, by `gather_rows`."""
    if x.dim() == 2 and dim in (0, -2):
        return gather_rows(x, index, *plan)
    moved = x.movedim(dim, 0)
    rows = moved.reshape(moved.shape[0], moved.shape[1:].numel())
    return gather_rows(rows, index, *plan).reshape(index.shape[0], *moved.shape[1:]).movedim(0, dim)


def rows_of_ends(x: Tensor, index: Tensor, dim: int = 0) -> Tensor:
    """Return the entry of `x` at each index. On a GPU its gradient is a sum with the same bits in every run.

    On a processor this is torch's own `index_select`, whose gradient has one order, too.
    """
    return rows_along(x, index, dim, *NO_PLAN) if sum_on_device.serves(x) else x.index_select(dim, index)

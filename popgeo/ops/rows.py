"""popgeo::gather and popgeo::scatter_sum: rows to edges and edges to rows, each the derivative of the other."""

import struct
from typing import Any, NoReturn

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops import delegate, reference
from popgeo.ops.checks import as_int64, check_index, refuse_index, refuse_plan
from popgeo.ops.plan import ScatterPlan
from popgeo.ops.registration import is_plain, register

_HALVES = (2, 3)  # the numbers of bfloat16 and float16
_pack_sum = struct.Struct("11q").pack  # SumCall
FLOAT_DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
NATIVE_DTYPES = FLOAT_DTYPES | {torch.int32: 4, torch.int64: 5}


def pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def scatter_sum_rows(
    src: Tensor, index: Tensor, num_rows: int, rowptr: Tensor | None, perm: Tensor | None, num_tiles: int
) -> Tensor:
    """Sums the rows of `src` that share an index, each in the order of the edges. [num_rows, channels]"""
    return _SCATTER_SUM(src, index, num_rows, rowptr, perm, num_tiles)


def gather_rows(x: Tensor, index: Tensor, rowptr: Tensor | None, perm: Tensor | None, num_tiles: int) -> Tensor:
    """The row of `x` that each edge names. [num_edges, channels]"""
    return _GATHER(x, index, rowptr, perm, num_tiles)


def sum_at_once(src: Tensor, index: Tensor, num_rows: int, plan: ScatterPlan | None) -> Tensor | None:
    """The sum by the shortest way, 3 microseconds; None where a call is unusual, or wrong, and takes the long way.

    Most calls are eager, on contiguous tensors in memory, without gradients, with an int64 index and its own plan.
    """
    if not is_plain() or type(src) is not Tensor or type(index) is not Tensor:
        return None
    native = library.packed("popgeo_scatter_sum")
    if native is None:
        return None
    try:
        num_edges, channels = src.shape
        number = NATIVE_DTYPES[src.dtype]
        if (src.requires_grad and torch.is_grad_enabled()) or not (src.is_cpu and index.is_cpu and src.is_contiguous()):
            return None
        if index.dtype is not torch.int64 or not index.is_contiguous():
            return None
        rowptr = perm = num_tiles = 0
        if plan is None:
            if num_rows < 0 or index.shape != (num_edges,):
                return None
        elif num_edges != plan.num_edges or not plan.is_of(index, num_rows):
            return None
        else:
            rowptr, perm, num_tiles = plan.rowptr.data_ptr(), pointer(plan.perm), plan.num_tiles
        num_threads = torch.get_num_threads()
        if (num_threads > 1 or number in _HALVES) and delegate.sum_to_torch(
            num_edges, num_rows, channels, num_threads=num_threads, by_edge=number not in _HALVES
        ):
            return None
        out = src.new_empty(num_rows, channels)
        call = _pack_sum(
            number, src.data_ptr(), index.data_ptr(), rowptr, perm, out.data_ptr(),
            num_edges, num_rows, channels, num_tiles, num_threads,
        )  # fmt: skip
        return None if native(call) else out
    except (ValueError, KeyError, IndexError, RuntimeError):
        return None


def _check_rows(name: str, rows: Tensor) -> None:
    if rows.dim() != 2:
        raise ValueError(f"{name} has shape {tuple(rows.shape)}; it is two-dimensional: (rows, channels).")


def check_sum(src: Tensor, index: Tensor, num_rows: int) -> None:
    _check_rows("src", src)
    check_index("index", index, src.shape[0], src)
    if num_rows < 0:
        raise ValueError(f"num_rows is {num_rows}; it cannot be negative.")


def _scatter_sum(
    src: Tensor,
    index: Tensor,
    num_rows: int,
    rowptr: Tensor | None = None,
    perm: Tensor | None = None,
    num_tiles: int = 0,
) -> Tensor:
    check_sum(src, index, num_rows)
    out = sum_compiled(src, index, num_rows, rowptr, perm, num_tiles)
    if out is not None:
        return out
    try:
        return reference.scatter_sum(src, index, num_rows)
    except (IndexError, RuntimeError):
        refuse_index("index", index, num_rows)
        raise


def sum_compiled(
    src: Tensor, index: Tensor | None, num_rows: int, rowptr: Tensor | None, perm: Tensor | None, num_tiles: int
) -> Tensor | None:
    """The sum by the compiled kernel, from a plan or else an index; None where torch is to compute it."""
    native = library.packed("popgeo_scatter_sum")
    num_edges, channels = src.shape
    by_edge = index is not None and src.dtype not in reference.HALVES
    if (
        native is None
        or not src.is_cpu
        or src.dtype not in NATIVE_DTYPES
        or delegate.sum_to_torch(num_edges, num_rows, channels, num_threads=torch.get_num_threads(), by_edge=by_edge)
    ):
        return None
    src = src.contiguous()
    out = src.new_empty(num_rows, channels)
    if rowptr is not None and index is not None:
        rowptr, perm = check_plan_tensors("index", index, num_rows, rowptr, perm)
    index = None if index is None else as_int64(index)
    pointers = src.data_ptr(), pointer(index), pointer(rowptr), pointer(perm), out.data_ptr()
    sizes = num_edges, num_rows, channels, num_tiles, torch.get_num_threads()
    if native(_pack_sum(NATIVE_DTYPES[src.dtype], *pointers, *sizes)):
        explain("index", index, num_rows, rowptr, perm)
    return out


def check_plan_tensors(
    name: str, index: Tensor, num_rows: int, rowptr: Tensor, perm: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The tensors of a plan as the compiled kernels read them; their values are checked there, edge by edge."""
    num_edges = index.shape[0]
    for tensor, size in ((rowptr, num_rows + 1), (perm, num_edges)):
        if tensor is None:
            continue
        if tensor.dtype is not torch.int32 or tensor.device != index.device:
            raise ValueError(
                f"A tensor of the plan is {tensor.dtype} on {tensor.device}; rowptr and perm are torch.int32 beside "
                f"the data. Use ScatterPlan.from_index({name}, {num_rows})."
            )
        if tensor.shape != (size,):
            raise ValueError(
                f"A tensor of the plan has shape {tuple(tensor.shape)}; for {num_edges} edges into {num_rows} rows it "
                f"has ({size},). Use ScatterPlan.from_index({name}, {num_rows})."
            )
    return rowptr.contiguous(), None if perm is None else perm.contiguous()


def explain(name: str, index: Tensor | None, num_rows: int, rowptr: Tensor | None, perm: Tensor | None) -> NoReturn:
    """Raises what made a kernel stop: an index out of range, a plan of another index, or no memory."""
    if index is not None:
        refuse_index(name, index, num_rows)
        if rowptr is not None:
            refuse_plan(name, index, num_rows, rowptr, perm)
    raise MemoryError("popgeo could not allocate its working memory.")


def _gather(
    x: Tensor, index: Tensor, rowptr: Tensor | None = None, perm: Tensor | None = None, num_tiles: int = 0
) -> Tensor:
    _check_rows("x", x)
    check_index("index", index, index.numel(), x)
    try:
        return x.index_select(0, index)
    except (IndexError, RuntimeError):
        refuse_index("index", index, x.shape[0])
        raise


def _fake_sum(
    src: Tensor,
    index: Tensor,
    num_rows: int,
    rowptr: Tensor | None = None,
    perm: Tensor | None = None,
    num_tiles: int = 0,
) -> Tensor:
    check_sum(src, index, num_rows)
    return src.new_empty(num_rows, src.shape[1])


def _fake_gather(
    x: Tensor, index: Tensor, rowptr: Tensor | None = None, perm: Tensor | None = None, num_tiles: int = 0
) -> Tensor:
    _check_rows("x", x)
    check_index("index", index, index.numel(), x)
    return x.new_empty(index.shape[0], x.shape[1])


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, index, _, rowptr, perm, ctx.num_tiles = inputs
    ctx.save_for_backward(index, rowptr, perm)


def _save_gather(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, index, rowptr, perm, ctx.num_tiles = inputs
    ctx.num_rows = x.shape[0]
    ctx.save_for_backward(index, rowptr, perm)


def _differentiate_sum(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    index, rowptr, perm = ctx.saved_tensors
    return gather_rows(grad, index, rowptr, perm, ctx.num_tiles), None, None, None, None, None


def _differentiate_gather(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    index, rowptr, perm = ctx.saved_tensors
    return scatter_sum_rows(grad, index, ctx.num_rows, rowptr, perm, ctx.num_tiles), None, None, None, None


_SCATTER_SUM = register(
    "scatter_sum(Tensor src, Tensor index, SymInt num_rows, "
    "Tensor? rowptr=None, Tensor? perm=None, int num_tiles=0) -> Tensor",
    kernel=_scatter_sum,
    fake=_fake_sum,
    setup_context=_save_sum,
    backward=_differentiate_sum,
)
_GATHER = register(
    "gather(Tensor x, Tensor index, Tensor? rowptr=None, Tensor? perm=None, int num_tiles=0) -> Tensor",
    kernel=_gather,
    fake=_fake_gather,
    setup_context=_save_gather,
    backward=_differentiate_gather,
)

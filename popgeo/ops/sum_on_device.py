"""Reductions at rows on a GPU with the same bits in every run, by row pointers instead of atomic operations."""

import functools
import importlib
from types import ModuleType

import torch
from torch import Tensor

from popgeo.ops import reference
from popgeo.ops.reference import HALVES


def serves(src: Tensor) -> bool:
    """Check that a tensor is floating point and on a GPU. torch sums integers, whose order does not matter."""
    return src.is_cuda and src.is_floating_point()


def scatter_sum(
    src: Tensor, index: Tensor, num_rows: int, rowptr: Tensor | None, perm: Tensor | None, reduce: str = "sum"
) -> Tensor:
    """Sum or multiply the rows of `src` that share an index, edge after edge; half precision is rounded once.

    Args:
        src: Rows. [num_edges, channels]
        index: Receiving row of each edge; read only without a plan. [num_edges]
        num_rows: Rows of the result.
        rowptr: First edge of each row, from a plan. [num_rows + 1]
        perm: Edges in the order of the rows; None if they are already in this order. [num_edges]
        reduce: `"sum"` or `"prod"`.

    Example:
        >>> scatter_sum(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1, 1, 0]), 3, None, None).flatten()
        tensor([3., 3., 0.])
    """
    if rowptr is None:
        rowptr, perm = plan(index, num_rows)
    kernels = triton_kernels() if src.is_cuda else None
    if kernels is None:
        return reduce_in_torch(src, rowptr, perm, reduce)
    return kernels.sum_rows(src, rowptr, perm, reduce == "prod")


def scatter_extremum(
    src: Tensor, index: Tensor, num_rows: int, rowptr: Tensor | None, perm: Tensor | None, largest: bool
) -> tuple[Tensor, Tensor]:
    """Find the first largest or smallest entry per row and channel, and its edge; see `popgeo.ops.scatter_max`."""
    if rowptr is None:
        rowptr, perm = plan(index, num_rows)
    kernels = triton_kernels("triton_rows") if src.is_cuda else None
    if kernels is not None:
        return kernels.extremum_rows(src, rowptr, perm, largest)
    reduce, worst = ("max", -torch.inf) if largest else ("min", torch.inf)
    best = reduce_in_torch(src.masked_fill(src.isnan(), worst), rowptr, perm, reduce)
    return reference.first_edges(src, index, best)


def cfconv(
    x: Tensor, w: Tensor, src: Tensor, dst: Tensor, num_nodes: int, rowptr: Tensor | None, perm: Tensor | None
) -> Tensor:
    """Sum `x[src[e]] * w[e]` at `dst[e]`; see `popgeo.ops.cfconv`. [num_nodes, channels]."""
    if rowptr is None:
        rowptr, perm = plan(dst, num_nodes)
    kernels = triton_kernels() if x.is_cuda else None
    if kernels is not None:
        return kernels.cfconv(x, w, src, rowptr, perm)
    wide_x, wide_w = (t.float() if t.dtype in HALVES else t for t in (x, w))
    return reduce_in_torch(wide_x.index_select(0, src) * wide_w, rowptr, perm).to(x.dtype)


def cfconv_backward(
    grad: Tensor, x: Tensor, w: Tensor, src: Tensor, dst: Tensor, rowptr: Tensor | None, perm: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of `cfconv` with respect to x and w, with the plan of `src`."""
    grad_x = cfconv(grad, w, dst, src, x.shape[0], rowptr, perm)
    kernels = triton_kernels() if x.is_cuda else None
    if kernels is not None:
        return grad_x, kernels.products(x, grad, src, dst)
    return grad_x, x.index_select(0, src) * grad.index_select(0, dst)


def reduce_in_torch(src: Tensor, rowptr: Tensor, perm: Tensor | None, reduce: str = "sum") -> Tensor:
    """Reduce with `torch.segment_reduce`, which takes the entries of each segment in order. [num_rows, channels]."""
    ordered = src if perm is None else src.index_select(0, perm)
    nothing = {"sum": 0.0, "prod": 1.0, "max": -torch.inf, "min": torch.inf}[reduce]
    if not ordered.numel() or rowptr.shape[0] == 1:
        return src.new_full((rowptr.shape[0] - 1, src.shape[1]), nothing)
    wide = ordered.float() if src.dtype in HALVES else ordered
    made = torch.segment_reduce(wide.contiguous(), reduce, offsets=rowptr, axis=0, unsafe=True, initial=nothing)
    return made.to(src.dtype)


def plan(index: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return row pointer and order of an index, without waiting for the device, so that a CUDA graph can capture it.

    Example:
        >>> plan(torch.tensor([2, 0, 2]), num_rows=3)
        (tensor([0, 1, 1, 3], dtype=torch.int32), tensor([1, 0, 2], dtype=torch.int32))
    """
    require_range("index", index, num_rows)
    ordered, perm = torch.sort(index, stable=True)
    return pointers(ordered, num_rows), perm.int()


def pointers(ordered: Tensor, num_rows: int) -> Tensor:
    """Return the first place of each row in a sorted index, and the end of the last row. int32 [num_rows + 1]."""
    rows = torch.arange(num_rows + 1, device=ordered.device, dtype=ordered.dtype)
    return torch.searchsorted(ordered, rows).int()


def require_range(name: str, index: Tensor, num_rows: int) -> None:
    """Check an index on the device without waiting; a later call of torch raises the error."""
    inside = ((index >= 0) & (index < num_rows)).all()
    torch._assert_async(inside, f"{name} has entries outside of 0 to {num_rows - 1}; the number of rows is {num_rows}.")


@functools.cache
def triton_kernels(file: str = "triton_kernels") -> ModuleType | None:
    """Import a file of Triton kernels; return None if Triton is missing."""
    try:
        return importlib.import_module(f"popgeo.ops.{file}")
    except ImportError:
        return None


def describe() -> str:
    """Return a description of the kernels that serve popgeo's operations on a GPU.

    Example:
        >>> describe().startswith("sums by ")
        True
    """
    if triton_kernels() is None:
        return "sums by torch.segment_reduce (Triton is not installed), all other operations by torch"
    served = "cfconv, interaction, neighbor lists, extremes and softmax"
    return f"sums by Triton kernels, as {served}, all other operations by torch"

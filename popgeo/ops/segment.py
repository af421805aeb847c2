"""Reductions of consecutive entries, and their reverse, with the signatures and results of torch_scatter."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from popgeo.ops.channel_rows import broadcast, is_shared
from popgeo.ops.eager import is_direct
from popgeo.ops.half_precision import in_float32
from popgeo.ops.refusals import check_choice, refuse_index
from popgeo.ops.scatter_by_index import gather, scatter
from popgeo.ops.scatter_reductions import segment_max_rows, segment_min_rows
from popgeo.ops.segment_sum import check_indptr, gather_csr_rows, segment_sum_rows, segments_in_kernel


def segment_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """Reduce the entries between consecutive pointers, as `torch_scatter.segment_csr` does.

    Args:
        src: Entries to reduce. [..., num_edges, ...]
        indptr: First entry of each row, and the end of the last row. Its last dimension corresponds to
            dimension `indptr.dim() - 1` of `src`; the other dimensions broadcast. [..., num_rows + 1]
        out: Tensor to overwrite with the result, also with the 0 of empty rows.
        reduce: `"sum"` (or `"add"`), `"mean"`, `"min"` or `"max"`.

    Returns:
        The reduced entries; 0 for an empty row. [..., num_rows, ...]

    Raises:
        ValueError: the pointers descend or exceed the entries, or `reduce` is unknown.

    Example:
        >>> segment_csr(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 2, 3]))
        tensor([3., 0., 3.])
    """
    reductions: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "sum": segment_sum_rows,
        "add": segment_sum_rows,
        "mean": _mean,
        "min": segment_min_rows,
        "max": segment_max_rows,
    }
    check_choice("reduce", reduce, reductions)
    result = _along_rows(reductions[reduce], src, indptr)
    result = result[0] if isinstance(result, tuple) else result  # an extreme without its position
    return result if out is None else out.copy_(result)


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Sum the entries between consecutive pointers; `segment_csr` explains the arguments."""
    return segment_csr(src, indptr, out, "sum")


segment_add_csr = segment_sum_csr


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Average the entries between consecutive pointers; `segment_csr` explains the arguments."""
    return segment_csr(src, indptr, out, "mean")


def segment_min_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Find the smallest entry between consecutive pointers and its position; `segment_csr` explains the arguments."""
    return _with_position(src, indptr, out, segment_min_rows)


def segment_max_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Find the largest entry between consecutive pointers and its position; `segment_csr` explains the arguments."""
    return _with_position(src, indptr, out, segment_max_rows)


def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Repeat each row once per entry between its pointers: the reverse of `segment_csr`.

    The length of the result is `indptr[-1]`, or the length of `out`, which is required in captured code.

    Args:
        src: One entry per row. [..., num_rows, ...]
        indptr: First entry of each row, and the end of the last row. [..., num_rows + 1]
        out: Tensor to overwrite with the result.

    Raises:
        ValueError: the pointers descend, or the number of rows does not match them.

    Example:
        >>> gather_csr(torch.tensor([7.0, 8.0, 9.0]), torch.tensor([0, 2, 2, 3]))
        tensor([7., 7., 9.])
    """
    if indptr.is_nested:
        raise ValueError("indptr is a nested tensor; pass a plain one.")
    dim = indptr.dim() - 1
    if out is not None:
        num_edges = out.shape[dim]
    elif is_direct(indptr):
        num_edges = int(indptr.select(-1, -1).max()) if indptr.numel() else 0
    else:
        raise ValueError("Under capture the length of the result cannot be read from indptr: pass out=.")
    result = _along_rows(lambda rows, ptr: gather_csr_rows(rows, ptr, num_edges), src, indptr)
    return result if out is None else out.copy_(result)


def segment_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None, reduce: str = "sum"
) -> Tensor:
    """Reduce the entries that share a sorted index, as `torch_scatter.segment_coo` does.

    The last dimension of the index corresponds to dimension `index.dim() - 1` of `src`. Otherwise see `scatter`.

    Example:
        >>> segment_coo(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 2]), dim_size=3)
        tensor([3., 0., 3.])
    """
    dim = index.dim() - 1
    if reduce == "mean" and not src.is_floating_point():
        total = scatter(src, index, dim, out, dim_size, "sum")
        count = scatter(torch.ones_like(src), index, dim, None, total.shape[dim], "sum").clamp(min=1)
        mean = torch.div(total, count, rounding_mode="trunc")  # towards zero; scatter rounds down
        return mean if out is None else out.copy_(mean)
    return scatter(src, index, dim, out, dim_size, reduce)


def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the entry at each index along dimension `index.dim() - 1`: the reverse of `segment_coo`.

    Example:
        >>> gather_coo(torch.tensor([7.0, 8.0]), torch.tensor([0, 0, 1]))
        tensor([7., 7., 8.])
    """
    dim = index.dim() - 1
    shape = (*src.shape[:dim], index.shape[dim], *src.shape[dim + 1 :])
    if dim == 0:
        result = gather(src, index)
    elif is_shared(full := broadcast(index, src.new_empty(()).expand(shape), dim), dim):
        vector = full.movedim(dim, 0).reshape(shape[dim], -1)[:, 0] if full.numel() else full.new_zeros(shape[dim])
        result = gather(src, vector, dim)
    else:
        if is_direct(index):
            refuse_index("index", index.reshape(-1), src.shape[dim])
        if src.is_cuda:  # the gradient of torch.gather adds in random order there
            rows, at = src.movedim(dim, 0), full.movedim(dim, 0).reshape(shape[dim], -1)
            at = at * at.shape[1] + torch.arange(at.shape[1], device=at.device)
            result = gather(rows.reshape(-1), at.flatten()).reshape(shape[dim], *rows.shape[1:]).movedim(0, dim)
        else:
            result = torch.gather(src, dim, full)
    return result if out is None else out.copy_(result)


def _along_rows(reduce: Callable[[Tensor, Tensor], Any], src: Tensor, indptr: Tensor) -> Any:
    """Apply a function of rows [num_rows, channels] and pointers along the pointers' dimension."""
    dim = indptr.dim() - 1
    if dim == 0 and src.dim() == 2:
        return reduce(src, indptr)
    if not 0 <= dim < src.dim() or indptr.shape[dim] == 0:
        raise ValueError(f"indptr has shape {tuple(indptr.shape)}, which fits no dimension of src, {tuple(src.shape)}.")
    try:
        full = indptr.expand(*src.shape[:dim], indptr.shape[dim])
    except RuntimeError:
        raise ValueError(
            f"indptr has shape {tuple(indptr.shape)}; its leading dimensions do not broadcast to {tuple(src.shape)}."
        ) from None
    if is_shared(full, dim):
        moved = src.movedim(dim, 0)
        pointers = full.reshape(-1, full.shape[dim])[0] if full.numel() else full.new_zeros(full.shape[dim])
        found = reduce(moved.reshape(moved.shape[0], moved.shape[1:].numel()), pointers)
        return tree_map(lambda rows: rows.reshape(rows.shape[0], *moved.shape[1:]).movedim(0, dim), found)
    each = src.reshape(-1, src.shape[dim], src.shape[dim + 1 :].numel())
    results = [reduce(rows, pointers) for rows, pointers in zip(each, full.reshape(-1, full.shape[dim]), strict=True)]

    def stacked(*rows: Tensor) -> Tensor:
        return torch.stack(rows).reshape(*src.shape[:dim], rows[0].shape[0], *src.shape[dim + 1 :])

    return tree_map(stacked, *results)


@in_float32
def _mean(rows: Tensor, indptr: Tensor) -> Tensor:
    if rows.dtype in (torch.float32, torch.float64) and is_direct(rows, indptr):
        check_indptr(indptr)
        mean = segments_in_kernel(3, rows, indptr, None)
        if mean is not None:
            return mean
    count = indptr.diff().clamp(min=1).unsqueeze(1).to(rows.dtype)
    mode = None if rows.is_floating_point() else "trunc"
    total = segment_sum_rows(rows, indptr)
    divide = torch.div if total.requires_grad else Tensor.div_
    return divide(total, count, rounding_mode=mode)


def _with_position(
    src: Tensor, indptr: Tensor, out: Tensor | None, find: Callable[..., tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    best, arg = _along_rows(find, src, indptr)
    return best if out is None else out.copy_(best), arg

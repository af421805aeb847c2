"""Reference definitions of the ops in plain torch. The compiled kernels must match them, bit for bit in float32."""

import torch
from torch import Tensor

from popgeo.ops.half_precision import HALVES as HALVES


def scatter_sum(src: Tensor, index: Tensor, num_rows: int) -> Tensor:
    """Compute out[index[e]] += src[e] from zero, edge after edge; half precision is summed in float32."""
    wide = src.float() if src.dtype in HALVES else src
    return wide.new_zeros(num_rows, src.shape[1]).index_add_(0, index, wide).to(src.dtype)


def cfconv(x: Tensor, w: Tensor, src: Tensor, dst: Tensor, num_nodes: int) -> Tensor:
    """Compute out[dst[e]] += x[src[e]] * w[e] from zero, edge after edge (arXiv:1706.08566, eq. 2)."""
    if x.dtype in HALVES:
        return cfconv(x.float(), w.float(), src, dst, num_nodes).to(x.dtype)
    return scatter_sum(x.index_select(0, src) * w, dst, num_nodes)


def cfconv_backward(grad: Tensor, x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradients of `cfconv` with respect to x and w."""
    if x.dtype in HALVES:
        grad_x, grad_w = cfconv_backward(grad.float(), x.float(), w.float(), src, dst)
        return grad_x.to(x.dtype), grad_w.to(x.dtype)
    grad_edge = grad.index_select(0, dst)
    return scatter_sum(grad_edge * w, src, x.shape[0]), x.index_select(0, src) * grad_edge


def scatter_mul(src: Tensor, index: Tensor, num_rows: int) -> Tensor:
    """Compute out[index[e]] *= src[e] from one, edge after edge."""
    wide = src.float() if src.dtype in HALVES else src
    ones = wide.new_ones(num_rows, src.shape[1])
    return ones.scatter_reduce_(0, _expand(index, wide), wide, "prod").to(src.dtype)


def scatter_extremum(src: Tensor, index: Tensor, num_rows: int, *, largest: bool) -> tuple[Tensor, Tensor]:
    """Find the first largest (or smallest) entry per row and channel, and its edge; 0 and `num_edges` for an empty row.

    A NaN compares as neither larger nor smaller, so it is never the result, as in torch_scatter.
    """
    reduce, worst = "amax" if largest else "amin", _worst(src.dtype, largest)
    candidates = torch.where(src == src, src, torch.full_like(src, worst))
    best = src.new_full((num_rows, src.shape[1]), worst).scatter_reduce_(0, _expand(index, src), candidates, reduce)
    return first_edges(src, index, best)


def first_edges(src: Tensor, index: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's best entries, with 0 for a row without any, and the first edge of each."""
    num_edges, full = src.shape[0], _expand(index, src)
    edge = torch.arange(num_edges, device=src.device).unsqueeze(1).expand_as(src)
    wins = src == best.gather(0, full)
    arg = edge.new_full(best.shape, num_edges)
    arg.scatter_reduce_(0, full, torch.where(wins, edge, num_edges), "amin")
    return best.masked_fill(arg == num_edges, 0), arg


def _expand(index: Tensor, src: Tensor) -> Tensor:
    return index.long().unsqueeze(1).expand_as(src)


def _worst(dtype: torch.dtype, largest: bool) -> float:
    """Return the entry that every other entry replaces."""
    limits = (-torch.inf, torch.inf) if dtype.is_floating_point else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return limits[0] if largest else limits[1]

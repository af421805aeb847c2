"""Sums over the edges of each row in Triton: one program per row and block of channels, no atomics.

Only `popgeo.ops.sum_on_device` imports this file, if Triton is installed. Each sum has one order, so all runs give the
same bits. Sums of rows go edge after edge; interactions with filters on a grid take a few edges at a time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_WIDE = {torch.float64: tl.float64}  # everything else sums in float32
_EDGES = 8  # edges that one program of an interaction reads at a time
_POINTS = tl.constexpr(8)  # points for the interpolation of a filter, as `interaction_call.POINTS`


@triton.jit
def _sum_rows(  # type: ignore[no-untyped-def]
    src, rowptr, perm, out, channels,
    PRODUCT: tl.constexpr, HAS_PERM: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    total = tl.full([BLOCK], 1 if PRODUCT else 0, WIDE)
    for place in range(tl.load(rowptr + row), tl.load(rowptr + row + 1)):
        edge = tl.load(perm + place).to(tl.int64) if HAS_PERM else place
        value = tl.load(src + edge * channels + channel, mask=inside, other=0.0).to(WIDE)
        total = total * value if PRODUCT else total + value
    tl.store(out + row * channels + channel, total, mask=inside)


@triton.jit
def _cfconv_rows(  # type: ignore[no-untyped-def]
    x, w, sender, rowptr, perm, out, channels, HAS_PERM: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    total = tl.zeros([BLOCK], dtype=WIDE)
    for place in range(tl.load(rowptr + row), tl.load(rowptr + row + 1)):
        edge = tl.load(perm + place).to(tl.int64) if HAS_PERM else place
        sent = tl.load(sender + edge).to(tl.int64)
        factor = tl.load(w + edge * channels + channel, mask=inside, other=0.0).to(WIDE)
        total += tl.load(x + sent * channels + channel, mask=inside, other=0.0).to(WIDE) * factor
    tl.store(out + row * channels + channel, total, mask=inside)


@triton.jit
def _products(x, grad, src, dst, out, channels, WIDE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    edge = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    at_src = tl.load(src + edge).to(tl.int64) * channels + channel
    at_dst = tl.load(dst + edge).to(tl.int64) * channels + channel
    product = tl.load(x + at_src, mask=inside, other=0.0).to(WIDE) * tl.load(grad + at_dst, mask=inside, other=0.0).to(
        WIDE
    )
    tl.store(out + edge * channels + channel, product, mask=inside)


@triton.jit
def _rows_at(rows, index, channel, inside, channels, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(rows + index[:, None] * channels + channel[None, :], mask=inside, other=0.0).to(WIDE)


@triton.jit
def _filters(table, start, weights, edge, here, channel, inside, channels, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.load(start + edge, mask=here, other=0).to(tl.int64)
    total = tl.load(weights + edge * _POINTS, mask=here, other=0.0)[:, None] * _rows_at(
        table, first, channel, inside, channels, WIDE
    )
    for k in tl.static_range(1, _POINTS):
        weight = tl.load(weights + edge * _POINTS + k, mask=here, other=0.0)
        total += weight[:, None] * _rows_at(table, first + k, channel, inside, channels, WIDE)
    return total


@triton.jit
def _products_of_ends(  # type: ignore[no-untyped-def]
    x, grad, src, dst, edge, here, channel, inside, channels, HALF_LIST: tl.constexpr, WIDE: tl.constexpr
):
    source = tl.load(src + edge, mask=here, other=0).to(tl.int64)
    receiver = tl.load(dst + edge, mask=here, other=0).to(tl.int64)
    product = _rows_at(x, source, channel, inside, channels, WIDE) * _rows_at(
        grad, receiver, channel, inside, channels, WIDE
    )
    if HALF_LIST:
        product += _rows_at(x, receiver, channel, inside, channels, WIDE) * _rows_at(
            grad, source, channel, inside, channels, WIDE
        )
    return product


@triton.jit
def _interaction_rows(  # type: ignore[no-untyped-def]
    x, table, scale, start, weights, sender, rowptr, perm, out, channels,
    HAS_SCALE: tl.constexpr, WIDE: tl.constexpr, EDGES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([EDGES, BLOCK], dtype=WIDE)
    end = tl.load(rowptr + row + 1)
    for first in range(tl.load(rowptr + row), end, EDGES):
        place = first + tl.arange(0, EDGES)
        here = place < end
        inside = here[:, None] & (channel < channels)[None, :]
        edge = tl.load(perm + place, mask=here, other=0).to(tl.int64)
        sent = tl.load(sender + edge, mask=here, other=0).to(tl.int64)
        message = _rows_at(x, sent, channel, inside, channels, WIDE) * _filters(
            table, start, weights, edge, here, channel, inside, channels, WIDE
        )
        if HAS_SCALE:
            message *= tl.load(scale + edge, mask=here, other=0.0).to(WIDE)[:, None]
        total += message
    tl.store(out + row * channels + channel, tl.sum(total, 0), mask=channel < channels)


@triton.jit
def _interaction_edges(  # type: ignore[no-untyped-def]
    x, grad, table, start, weights, src, dst, out, num_edges, channels,
    HALF_LIST: tl.constexpr, WIDE: tl.constexpr, EDGES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    edge = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    exists = edge < num_edges
    here = exists & (tl.load(start + edge, mask=exists, other=-1) >= 0)
    total = tl.zeros([EDGES, BLOCK], dtype=WIDE)
    for first in range(0, channels, BLOCK):
        channel = first + tl.arange(0, BLOCK)
        inside = here[:, None] & (channel < channels)[None, :]
        total += _products_of_ends(
            x, grad, src, dst, edge, here, channel, inside, channels, HALF_LIST, WIDE
        ) * _filters(table, start, weights, edge, here, channel, inside, channels, WIDE)
    tl.store(out + edge, tl.sum(total, 1), mask=exists)


@triton.jit
def _interaction_points(  # type: ignore[no-untyped-def]
    x, grad, scale, start, weights, src, dst, pointers, perm, out, channels, num_parts,
    HALF_LIST: tl.constexpr, HAS_SCALE: tl.constexpr, WIDE: tl.constexpr, EDGES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    point, part = tl.program_id(0), tl.program_id(2)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # Edges are sorted by their first point, so those that read this point are next to each other.
    begin, end = tl.load(pointers + tl.maximum(point - (_POINTS - 1), 0)), tl.load(pointers + point + 1)
    length = tl.cdiv(end - begin, num_parts)
    begin += part * length
    end = tl.minimum(end, begin + length)
    total = tl.zeros([EDGES, BLOCK], dtype=WIDE)
    for first in range(begin, end, EDGES):
        place = first + tl.arange(0, EDGES)
        here = place < end
        inside = here[:, None] & (channel < channels)[None, :]
        edge = tl.load(perm + place, mask=here, other=0).to(tl.int64)
        weight = tl.load(
            weights + edge * _POINTS + point - tl.load(start + edge, mask=here, other=0), mask=here, other=0.0
        )
        if HAS_SCALE:
            weight *= tl.load(scale + edge, mask=here, other=0.0).to(WIDE)
        total += weight[:, None] * _products_of_ends(
            x, grad, src, dst, edge, here, channel, inside, channels, HALF_LIST, WIDE
        )
    at = (part * tl.num_programs(0) + point).to(tl.int64) * channels
    tl.store(out + at + channel, tl.sum(total, 0), mask=channel < channels)


def sum_rows(src: Tensor, rowptr: Tensor, perm: Tensor | None, product: bool = False) -> Tensor:
    """Sum or multiply the rows `perm[rowptr[i]:rowptr[i + 1]]` of `src` for each `i`. [num_rows, channels]."""
    src, num_rows = src.contiguous(), rowptr.shape[0] - 1
    out = src.new_empty(num_rows, src.shape[1])
    if out.numel():
        grid, block = _grid(*out.shape)
        order = rowptr if perm is None else perm
        _sum_rows[grid](src, rowptr, order, out, src.shape[1], product, perm is not None, _wide(src), block)
    return out


def cfconv(x: Tensor, w: Tensor, sender: Tensor, rowptr: Tensor, perm: Tensor | None) -> Tensor:
    """Sum `x[sender[e]] * w[e]` over the edges of each row, as `sum_rows` does. [num_rows, channels]."""
    x, w, sender = x.contiguous(), w.contiguous(), sender.contiguous()
    out = x.new_empty(rowptr.shape[0] - 1, x.shape[1])
    if out.numel():
        grid, block = _grid(*out.shape)
        order = rowptr if perm is None else perm
        _cfconv_rows[grid](x, w, sender, rowptr, order, out, x.shape[1], perm is not None, _wide(x), block)
    return out


def products(x: Tensor, grad: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """Compute `x[src[e]] * grad[dst[e]]` for each edge. [num_edges, channels]."""
    x, grad, src, dst = x.contiguous(), grad.contiguous(), src.contiguous(), dst.contiguous()
    out = x.new_empty(src.shape[0], x.shape[1])
    if out.numel():
        grid, block = _grid(*out.shape)
        _products[grid](x, grad, src, dst, out, x.shape[1], _wide(x), block)
    return out


def interaction_rows(
    x: Tensor, table: Tensor, scale: Tensor | None, start: Tensor, weights: Tensor, sender: Tensor, rowptr: Tensor,
    perm: Tensor,
) -> Tensor:  # fmt: skip
    """Sum `x[sender[e]] * filter(e) * scale[e]` over the edges of each row. [num_rows, channels].

    The filter is the sum of the rows `start[e]` to `start[e] + 7` of `table`, times `weights[e]`.
    """
    out = x.new_empty(rowptr.shape[0] - 1, x.shape[1])
    if out.numel():
        grid, block = _grid(*out.shape)
        _interaction_rows[grid](
            x, table, weights if scale is None else scale, start, weights, sender, rowptr, perm, out, x.shape[1],
            scale is not None, _wide(table), _EDGES, block,
        )  # fmt: skip
    return out


def interaction_edges(
    x: Tensor, grad: Tensor, table: Tensor, start: Tensor, weights: Tensor, src: Tensor, dst: Tensor, half_list: bool,
) -> Tensor:  # fmt: skip
    """Sum `x[src[e]] * grad[dst[e]] * filter(e)` over the channels, for each edge with a start of 0 or more.

    In a half list the product with both ends exchanged is added. [num_edges]
    """
    num_edges, channels = src.shape[0], x.shape[1]
    out = table.new_empty(num_edges)
    if num_edges:
        _interaction_edges[(triton.cdiv(num_edges, _EDGES),)](
            x, grad, table, start, weights, src, dst, out, num_edges, channels,
            half_list, _wide(table), _EDGES, _grid(1, channels)[1],
        )  # fmt: skip
    return out


def interaction_points(
    x: Tensor, grad: Tensor, scale: Tensor | None, start: Tensor, weights: Tensor, src: Tensor, dst: Tensor,
    pointers: Tensor, perm: Tensor, half_list: bool,
) -> Tensor:  # fmt: skip
    """Sum `x[src[e]] * grad[dst[e]] * weight * scale[e]` over the edges that read each point of the grid.

    The weight is that of the point in the edge's filter; `perm` sorts the edges by `start`. [num_points, channels]
    """
    num_points, channels = pointers.shape[0] - 1, x.shape[1]
    num_parts = max(1, min(32, src.shape[0] // (16 * num_points)))  # so that a program has about 128 edges
    out = weights.new_empty(num_parts, num_points, channels)
    if out.numel():
        (_, blocks), block = _grid(num_points, channels)
        _interaction_points[(num_points, blocks, num_parts)](
            x, grad, weights if scale is None else scale, start, weights, src, dst, pointers, perm, out, channels,
            num_parts, half_list, scale is not None, _wide(weights), _EDGES, block,
        )  # fmt: skip
    return out.sum(0)


def _grid(rows: int, channels: int) -> tuple[tuple[int, int], int]:
    block = min(128, triton.next_power_of_2(channels))
    return (rows, triton.cdiv(channels, block)), block


def _wide(tensor: Tensor):  # type: ignore[no-untyped-def]
    return _WIDE.get(tensor.dtype, tl.float32)

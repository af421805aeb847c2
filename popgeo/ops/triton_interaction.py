"""Interactions with filters on a grid in Triton, of scalars and of vectors, without atomics.

Only `popgeo.ops.interaction_on_device` imports this file, if Triton is installed. Each sum has one order, so all runs
give the same bits; a program takes a few edges at a time.
"""

import triton
import triton.language as tl
from torch import Tensor

from popgeo.ops.triton_kernels import _grid, _launch, _wide

_EDGES = 8  # edges that one program reads at a time
_POINTS = tl.constexpr(8)  # points for the interpolation of a filter, as `interaction_call.POINTS`


@triton.jit
def _rows_at(rows, index, column, inside, width, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(rows + index[:, None] * width + column[None, :], mask=inside, other=0.0).to(WIDE)


@triton.jit
def _filters(table, start, weights, edge, here, column, inside, width, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.load(start + edge, mask=here, other=0).to(tl.int64)
    total = tl.load(weights + edge * _POINTS, mask=here, other=0.0)[:, None] * _rows_at(
        table, first, column, inside, width, WIDE
    )
    for k in tl.static_range(1, _POINTS):
        weight = tl.load(weights + edge * _POINTS + k, mask=here, other=0.0)
        total += weight[:, None] * _rows_at(table, first + k, column, inside, width, WIDE)
    return total


@triton.jit
def _axes_at(rows, index, channel, inside, channels, width, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    along_x = _rows_at(rows, index, channel + channels, inside, width, WIDE)
    along_y = _rows_at(rows, index, channel + 2 * channels, inside, width, WIDE)
    return along_x, along_y, _rows_at(rows, index, channel + 3 * channels, inside, width, WIDE)


@triton.jit
def _directions(direction, edge, here, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    along_x = tl.load(direction + 3 * edge, mask=here, other=0.0).to(WIDE)[:, None]
    along_y = tl.load(direction + 3 * edge + 1, mask=here, other=0.0).to(WIDE)[:, None]
    return along_x, along_y, tl.load(direction + 3 * edge + 2, mask=here, other=0.0).to(WIDE)[:, None]


@triton.jit
def _products_of_ends(  # type: ignore[no-untyped-def]
    x, grad, src, dst, edge, here, channel, inside, channels,
    HALF_LIST: tl.constexpr, VECTORS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    source = tl.load(src + edge, mask=here, other=0).to(tl.int64)
    receiver = tl.load(dst + edge, mask=here, other=0).to(tl.int64)
    of_x, of_grad = (5 * channels, 4 * channels) if VECTORS else (channels, channels)
    product = _rows_at(x, source, channel, inside, of_x, WIDE) * _rows_at(
        grad, receiver, channel, inside, of_grad, WIDE
    )
    if HALF_LIST:
        product += _rows_at(x, receiver, channel, inside, of_x, WIDE) * _rows_at(
            grad, source, channel, inside, of_grad, WIDE
        )
    return product


@triton.jit
def _vector_products(x, grad, source, receiver, channel, inside, channels, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    to_x, to_y, to_z = _axes_at(grad, receiver, channel, inside, channels, 4 * channels, WIDE)
    x_x, x_y, x_z = _axes_at(x, source, channel, inside, channels, 5 * channels, WIDE)
    along = _rows_at(x, source, channel + 4 * channels, inside, 5 * channels, WIDE)
    return x_x * to_x + x_y * to_y + x_z * to_z, along * to_x, along * to_y, along * to_z


@triton.jit
def _vector_products_of_ends(  # type: ignore[no-untyped-def]
    x, grad, src, dst, edge, here, channel, inside, channels, HALF_LIST: tl.constexpr, WIDE: tl.constexpr
):
    source = tl.load(src + edge, mask=here, other=0).to(tl.int64)
    receiver = tl.load(dst + edge, mask=here, other=0).to(tl.int64)
    vectors, on_x, on_y, on_z = _vector_products(x, grad, source, receiver, channel, inside, channels, WIDE)
    if HALF_LIST:  # the reverse edge has the opposite direction
        more, off_x, off_y, off_z = _vector_products(x, grad, receiver, source, channel, inside, channels, WIDE)
        vectors, on_x, on_y, on_z = vectors + more, on_x - off_x, on_y - off_y, on_z - off_z
    return vectors, on_x, on_y, on_z


@triton.jit
def _interaction_rows(  # type: ignore[no-untyped-def]
    x, table, scale, direction, start, weights, sender, rowptr, perm, out, channels,
    HAS_SCALE: tl.constexpr, READ: tl.constexpr, WRITTEN: tl.constexpr, WIDE: tl.constexpr, EDGES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    width = 3 * channels if READ > 1 else channels
    total = tl.zeros([EDGES, BLOCK], dtype=WIDE)
    on_x, on_y, on_z, along = total, total, total, total
    end = tl.load(rowptr + row + 1)
    for first in range(tl.load(rowptr + row), end, EDGES):
        place = first + tl.arange(0, EDGES)
        here = place < end
        inside = here[:, None] & (channel < channels)[None, :]
        edge = tl.load(perm + place, mask=here, other=0).to(tl.int64)
        sent = tl.load(sender + edge, mask=here, other=0).to(tl.int64)
        message = _rows_at(x, sent, channel, inside, READ * channels, WIDE) * _filters(
            table, start, weights, edge, here, channel, inside, width, WIDE
        )
        if HAS_SCALE:
            factor = tl.load(scale + edge, mask=here, other=0.0).to(WIDE)[:, None]
            message *= factor
        total += message
        if READ > 1:
            of_vectors = _filters(table, start, weights, edge, here, channel + channels, inside, width, WIDE)
            of_edges = _filters(table, start, weights, edge, here, channel + 2 * channels, inside, width, WIDE)
            if HAS_SCALE:
                of_vectors, of_edges = of_vectors * factor, of_edges * factor
            x_x, x_y, x_z = _axes_at(x, sent, channel, inside, channels, READ * channels, WIDE)
            d_x, d_y, d_z = _directions(direction, edge, here, WIDE)
            on_x, on_y, on_z = on_x + x_x * of_vectors, on_y + x_y * of_vectors, on_z + x_z * of_vectors
            if READ == 5:
                of_edges *= _rows_at(x, sent, channel + 4 * channels, inside, READ * channels, WIDE)
                on_x, on_y, on_z = on_x + d_x * of_edges, on_y + d_y * of_edges, on_z + d_z * of_edges
            else:
                along += (d_x * x_x + d_y * x_y + d_z * x_z) * of_edges
    at = out + row * WRITTEN * channels + channel
    tl.store(at, tl.sum(total, 0), mask=channel < channels)
    if WRITTEN > 1:
        tl.store(at + channels, tl.sum(on_x, 0), mask=channel < channels)
        tl.store(at + 2 * channels, tl.sum(on_y, 0), mask=channel < channels)
        tl.store(at + 3 * channels, tl.sum(on_z, 0), mask=channel < channels)
    if WRITTEN == 5:
        tl.store(at + 4 * channels, tl.sum(along, 0), mask=channel < channels)


@triton.jit
def _interaction_edges(  # type: ignore[no-untyped-def]
    x, grad, table, direction, of_direction, start, weights, src, dst, out, num_edges, channels,
    HALF_LIST: tl.constexpr, VECTORS: tl.constexpr, WIDE: tl.constexpr, EDGES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    edge = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    exists = edge < num_edges
    here = exists & (tl.load(start + edge, mask=exists, other=-1) >= 0)
    total = tl.zeros([EDGES, BLOCK], dtype=WIDE)
    to_x, to_y, to_z = total, total, total
    width = 3 * channels if VECTORS else channels
    for first in range(0, channels, BLOCK):
        channel = first + tl.arange(0, BLOCK)
        inside = here[:, None] & (channel < channels)[None, :]
        total += _products_of_ends(
            x, grad, src, dst, edge, here, channel, inside, channels, HALF_LIST, VECTORS, WIDE
        ) * _filters(table, start, weights, edge, here, channel, inside, width, WIDE)
        if VECTORS:
            vectors, on_x, on_y, on_z = _vector_products_of_ends(
                x, grad, src, dst, edge, here, channel, inside, channels, HALF_LIST, WIDE
            )
            d_x, d_y, d_z = _directions(direction, edge, here, WIDE)
            total += vectors * _filters(table, start, weights, edge, here, channel + channels, inside, width, WIDE)
            along = d_x * on_x + d_y * on_y + d_z * on_z
            total += along * _filters(table, start, weights, edge, here, channel + 2 * channels, inside, width, WIDE)
            filters = _filters(of_direction, start, weights, edge, here, channel + 2 * channels, inside, width, WIDE)
            to_x, to_y, to_z = to_x + on_x * filters, to_y + on_y * filters, to_z + on_z * filters
    if VECTORS:
        tl.store(out + 4 * edge, tl.sum(total, 1), mask=exists)
        tl.store(out + 4 * edge + 1, tl.sum(to_x, 1), mask=exists)
        tl.store(out + 4 * edge + 2, tl.sum(to_y, 1), mask=exists)
        tl.store(out + 4 * edge + 3, tl.sum(to_z, 1), mask=exists)
    else:
        tl.store(out + edge, tl.sum(total, 1), mask=exists)


@triton.jit
def _interaction_points(  # type: ignore[no-untyped-def]
    x, grad, scale, direction, start, weights, src, dst, pointers, perm, out, channels, num_parts,
    HALF_LIST: tl.constexpr, HAS_SCALE: tl.constexpr, VECTORS: tl.constexpr, WIDE: tl.constexpr, EDGES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    point, part = tl.program_id(0), tl.program_id(2)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # Edges are sorted by their first point, so those that read this point are next to each other.
    begin, end = tl.load(pointers + tl.maximum(point - (_POINTS - 1), 0)), tl.load(pointers + point + 1)
    length = tl.cdiv(end - begin, num_parts)
    begin += part * length
    end = tl.minimum(end, begin + length)
    total = tl.zeros([EDGES, BLOCK], dtype=WIDE)
    of_vectors, of_edges = total, total
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
            x, grad, src, dst, edge, here, channel, inside, channels, HALF_LIST, VECTORS, WIDE
        )
        if VECTORS:
            vectors, on_x, on_y, on_z = _vector_products_of_ends(
                x, grad, src, dst, edge, here, channel, inside, channels, HALF_LIST, WIDE
            )
            d_x, d_y, d_z = _directions(direction, edge, here, WIDE)
            of_vectors += weight[:, None] * vectors
            of_edges += weight[:, None] * (d_x * on_x + d_y * on_y + d_z * on_z)
    width = 3 * channels if VECTORS else channels
    at = out + (part * tl.num_programs(0) + point).to(tl.int64) * width + channel
    tl.store(at, tl.sum(total, 0), mask=channel < channels)
    if VECTORS:
        tl.store(at + channels, tl.sum(of_vectors, 0), mask=channel < channels)
        tl.store(at + 2 * channels, tl.sum(of_edges, 0), mask=channel < channels)


def interaction_rows(
    x: Tensor, table: Tensor, scale: Tensor | None, direction: Tensor | None, start: Tensor, weights: Tensor,
    sender: Tensor, rowptr: Tensor, perm: Tensor, is_transposed: bool,
) -> Tensor:  # fmt: skip
    """Sum `x[sender[e]] * filter(e) * scale[e]` over the edges of each row. [num_rows, channels].

    The filter is the sum of the rows `start[e]` to `start[e] + 7` of `table`, times `weights[e]`. With directions there
    are messages of scalars and vectors, as in `InteractionCall`: five parts of x give four sums. The transposed
    operation gives five sums of the four parts of a gradient.
    """
    read, written = (1, 1) if direction is None else (4, 5) if is_transposed else (5, 4)
    channels = x.shape[1] // read
    out = x.new_empty(rowptr.shape[0] - 1, written * channels)
    if out.numel():
        grid, block = _grid(len(out), channels)
        _launch(_interaction_rows, grid,
            x, table, _or(scale, weights), _or(direction, weights), start, weights, sender, rowptr, perm, out, channels,
            scale is not None, read, written, _wide(table), _EDGES, block,
        )  # fmt: skip
    return out


def interaction_edges(
    x: Tensor, grad: Tensor, table: Tensor, direction: Tensor | None, of_direction: Tensor | None, start: Tensor,
    weights: Tensor, src: Tensor, dst: Tensor, half_list: bool,
) -> Tensor:  # fmt: skip
    """Sum `x[src[e]] * grad[dst[e]] * filter(e)` over the channels, for each edge with a start of 0 or more.

    In a half list the product with both ends exchanged is added. [num_edges, 1] With directions the derivatives by the
    direction follow, with filters from the table `of_direction`. [num_edges, 4]
    """
    num_edges, channels = src.shape[0], x.shape[1] if direction is None else x.shape[1] // 5
    out = table.new_empty(num_edges, 1 if direction is None else 4)
    block = _grid(1, channels)[1] if direction is None else min(64, _grid(1, channels)[1])  # within the registers
    if num_edges:
        _launch(_interaction_edges, (triton.cdiv(num_edges, _EDGES),),
            x, grad, table, _or(direction, weights), _or(of_direction, table), start, weights, src, dst, out, num_edges,
            channels, half_list, direction is not None, _wide(table), _EDGES, block,
        )  # fmt: skip
    return out


def interaction_points(
    x: Tensor, grad: Tensor, scale: Tensor | None, direction: Tensor | None, start: Tensor, weights: Tensor,
    src: Tensor, dst: Tensor, pointers: Tensor, perm: Tensor, half_list: bool,
) -> Tensor:  # fmt: skip
    """Sum `x[src[e]] * grad[dst[e]] * weight * scale[e]` over the edges that read each point of the grid.

    The weight is that of the point in the edge's filter; `perm` sorts the edges by `start`. [num_points, channels];
    with directions, channels of the three kinds of filters.
    """
    num_points, channels = pointers.shape[0] - 1, x.shape[1] if direction is None else x.shape[1] // 5
    num_parts = max(1, min(32, src.shape[0] // (16 * num_points)))  # so that a program has about 128 edges
    out = weights.new_empty(num_parts, num_points, channels if direction is None else 3 * channels)
    if out.numel():
        (_, blocks), block = _grid(num_points, channels)
        _launch(_interaction_points, (num_points, blocks, num_parts),
            x, grad, _or(scale, weights), _or(direction, weights), start, weights, src, dst, pointers, perm, out,
            channels, num_parts, half_list, scale is not None, direction is not None, _wide(weights), _EDGES, block,
        )  # fmt: skip
    return out.sum(0)


def _or(tensor: Tensor | None, unused: Tensor) -> Tensor:
    return unused if tensor is None else tensor

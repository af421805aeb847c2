"""Searches for neighbors within graphs in Triton: one program per node, without a list of all pairs.

`popgeo.ops.neighbor_search` imports this file if Triton is installed. The squares of distances are added as on the
processor, without fused multiply-adds, so the slots are the same.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from popgeo.ops.triton_kernels import _launch

_EXACT = {"enable_fp_fusion": False, "num_warps": 1}
_BLOCK = 256  # candidates that a program compares at once


@triton.jit
def _window(first, size, real, node, width, HAS_MASK: tl.constexpr):  # type: ignore[no-untyped-def]
    begin = tl.load(first + node)
    end = begin + tl.minimum(tl.load(size + node), width)
    if HAS_MASK:
        end = tl.where(tl.load(real + node) != 0, end, begin)
    return begin, end


@triton.jit
def _near(pos, real, node, others, end, limit, HAS_MASK: tl.constexpr, DIMS: tl.constexpr):  # type: ignore[no-untyped-def]
    inside = (others < end) & (others != node)
    if HAS_MASK:
        inside &= tl.load(real + others, mask=inside, other=0) != 0
    r2 = tl.zeros(others.shape, dtype=pos.dtype.element_ty)
    for axis in tl.static_range(DIMS):
        along = tl.load(pos + others * DIMS + axis, mask=inside, other=0.0) - tl.load(pos + node * DIMS + axis)
        r2 += along * along
    return r2, inside & (r2 <= limit)


@triton.jit
def _nearest(  # type: ignore[no-untyped-def]
    pos, first, size, real, limit, others_at, near_at, width, slots,
    HAS_MASK: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0).to(tl.int64)
    begin, end = _window(first, size, real, node, width, HAS_MASK)
    longest = tl.load(limit)
    last, last_r2 = begin - 1, tl.full([], -1.0, longest.dtype)
    for slot in range(slots):
        best, best_r2 = end, longest
        for start in range(begin, end, BLOCK):
            others = start + tl.arange(0, BLOCK)
            r2, near = _near(pos, real, node, others, end, longest, HAS_MASK, DIMS)
            near &= (r2 > last_r2) | ((r2 == last_r2) & (others > last))
            low = tl.min(tl.where(near, r2, float("inf")), 0)
            lowest = tl.min(tl.where(near & (r2 == low), others, end), 0)
            is_better = (lowest < end) & ((best == end) | (low < best_r2))
            best, best_r2 = tl.where(is_better, lowest, best), tl.where(is_better, low, best_r2)
        is_found = best < end
        tl.store(others_at + node * slots + slot, tl.where(is_found, best, node))
        tl.store(near_at + node * slots + slot, is_found)
        last, last_r2 = best, best_r2
        end = tl.where(is_found, end, begin)


@triton.jit
def _within(  # type: ignore[no-untyped-def]
    pos, first, size, real, limit, counts, places, edges_at, width, slots,
    COUNTS: tl.constexpr, HAS_MASK: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0).to(tl.int64)
    begin, end = _window(first, size, real, node, width, HAS_MASK)
    longest = tl.load(limit)
    at = begin - begin if COUNTS else tl.load(places + node)
    for start in range(begin, end, BLOCK):
        others = start + tl.arange(0, BLOCK)
        _, near = _near(pos, real, node, others, end, longest, HAS_MASK, DIMS)
        found = near.to(tl.int64)
        if not COUNTS:
            place = at + tl.cumsum(found, 0) - found
            has_slot = near & (place < slots)
            tl.store(edges_at + place, others, mask=has_slot)
            tl.store(edges_at + slots + place, tl.zeros_like(others) + node, mask=has_slot)
        at += tl.sum(found, 0)
    if COUNTS:
        tl.store(counts + node, at)


def nearest(
    pos: Tensor, first: Tensor, size: Tensor, real: Tensor | None, limit: Tensor, width: int, slots: int
) -> tuple[Tensor, Tensor]:
    """Find the `slots` nearest neighbors of each node, of equally distant ones the first; absent ones are the node.

    Args:
        pos: Positions. [num_nodes, num_dims]
        first: First row of each node's graph. int64 [num_nodes]
        size: Rows of each node's graph. int64 [num_nodes]
        real: Mask of real nodes. [num_nodes]
        limit: Square of the longest distance, in the type of the positions. [1]
        width: Rows, from the start of a graph, that are searched.
        slots: Slots of each node.

    Returns:
        Neighbors and their mask, both [num_nodes, slots].
    """
    others = first.new_empty(len(pos), slots)
    near = torch.empty_like(others, dtype=torch.bool)
    if others.numel():
        given, constants = _given(pos, first, size, real, limit, width)
        _launch(_nearest, (len(pos),), *given, others, near.view(torch.uint8), width, slots, *constants, **_EXACT)
    return others, near


def within(
    pos: Tensor, first: Tensor, size: Tensor, real: Tensor | None, limit: Tensor, width: int, slots: int
) -> tuple[Tensor, Tensor]:
    """Find all edges, sorted by center and neighbor; the arguments are those of `nearest`, with slots for the batch.

    Returns:
        Neighbors and centers, for absent edges the last node, [2, slots]; and the number of edges found, [].
    """
    counts, edges = torch.zeros_like(first), first.new_full((2, slots), len(pos) - 1)
    places = counts
    for is_count in (True, False) if len(pos) else ():
        given, constants = _given(pos, first, size, real, limit, width)
        _launch(_within, (len(pos),), *given, counts, places, edges, width, slots, is_count, *constants, **_EXACT)
        places = counts.cumsum(0) - counts
    return edges, counts.sum()


def _given(
    pos: Tensor, first: Tensor, size: Tensor, real: Tensor | None, limit: Tensor, width: int
) -> tuple[list[Tensor], tuple[bool, int, int]]:
    mask = first if real is None else real.contiguous().view(torch.uint8)
    constants = real is not None, pos.shape[1], min(_BLOCK, triton.next_power_of_2(width))
    return [pos.contiguous(), first, size, mask, limit], constants

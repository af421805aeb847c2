"""Extremes and softmax over the edges of each row in Triton: one program per row and block of channels, no atomics.

Only `popgeo.ops.sum_on_device` imports this file, if Triton is installed. A program reads a few edges at a time, always
in the same way, so all runs give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from popgeo.ops.exp_or_zero import greatest_zero
from popgeo.ops.triton_kernels import _grid, _launch, _wide

_EDGES = 16  # edges that a program reads at a time


@triton.jit
def _entries(perm, first, end, channels, HAS_PERM: tl.constexpr, EDGES: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = first + tl.arange(0, EDGES)
    here = place < end
    edge = (tl.load(perm + place, mask=here, other=0) if HAS_PERM else place).to(tl.int64)
    inside = here[:, None] & (channel < channels)[None, :]
    return edge[:, None], edge[:, None] * channels + channel[None, :], inside


@triton.jit
def _extremum_rows(  # type: ignore[no-untyped-def]
    src, rowptr, perm, out, arg, num_edges, channels,
    LARGEST: tl.constexpr, HAS_PERM: tl.constexpr, WIDE: tl.constexpr, EDGES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    end = tl.load(rowptr + row + 1)
    best = tl.full([EDGES, BLOCK], float("-inf"), WIDE)
    found = tl.zeros([EDGES, BLOCK], tl.int64) + num_edges  # no edge yet
    for first in range(tl.load(rowptr + row), end, EDGES):
        edge, at, inside = _entries(perm, first, end, channels, HAS_PERM, EDGES, BLOCK)
        value = tl.load(src + at, mask=inside, other=float("nan")).to(WIDE)
        value = value if LARGEST else -value
        wins = (value > best) | ((found == num_edges) & (value == value))  # NaN never wins
        best, found = tl.where(wins, value, best), tl.where(wins, edge, found)
    winner = tl.min(tl.where(best == tl.max(best, 0)[None, :], found, num_edges), 0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    value = tl.load(src + winner * channels + channel, mask=inside & (winner < num_edges), other=0.0)
    tl.store(out + row * channels + channel, value, mask=inside)
    tl.store(arg + row * channels + channel, winner, mask=inside)


@triton.jit
def _exp_or_zero(x, ZERO: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.where(x <= ZERO, 0.0, tl.exp(x))


@triton.jit
def _softmax_rows(  # type: ignore[no-untyped-def]
    src, rowptr, perm, out, channels, ZERO: tl.constexpr,
    HAS_PERM: tl.constexpr, WIDE: tl.constexpr, EDGES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    begin, end = tl.load(rowptr + tl.program_id(0)), tl.load(rowptr + tl.program_id(0) + 1)
    best = tl.full([EDGES, BLOCK], float("-inf"), WIDE)
    for first in range(begin, end, EDGES):
        _, at, inside = _entries(perm, first, end, channels, HAS_PERM, EDGES, BLOCK)
        value = tl.load(src + at, mask=inside, other=float("-inf")).to(WIDE)
        best = tl.where(value > best, value, best)
    largest = tl.max(best, 0)[None, :]
    total = tl.zeros([EDGES, BLOCK], WIDE)
    for first in range(begin, end, EDGES):
        _, at, inside = _entries(perm, first, end, channels, HAS_PERM, EDGES, BLOCK)
        value = tl.load(src + at, mask=inside, other=0.0).to(WIDE)
        total += tl.where(inside, _exp_or_zero(value - largest, ZERO), 0.0)
    whole = tl.sum(total, 0)[None, :]
    for first in range(begin, end, EDGES):
        _, at, inside = _entries(perm, first, end, channels, HAS_PERM, EDGES, BLOCK)
        value = tl.load(src + at, mask=inside, other=0.0).to(WIDE)
        tl.store(out + at, _exp_or_zero(value - largest, ZERO) / whole, mask=inside)


@triton.jit
def _softmax_backward_rows(  # type: ignore[no-untyped-def]
    grad, weight, rowptr, perm, out, channels,
    HAS_PERM: tl.constexpr, WIDE: tl.constexpr, EDGES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    begin, end = tl.load(rowptr + tl.program_id(0)), tl.load(rowptr + tl.program_id(0) + 1)
    total = tl.zeros([EDGES, BLOCK], WIDE)
    for first in range(begin, end, EDGES):
        _, at, inside = _entries(perm, first, end, channels, HAS_PERM, EDGES, BLOCK)
        share = tl.load(weight + at, mask=inside, other=0.0).to(WIDE)
        total += share * tl.load(grad + at, mask=inside, other=0.0).to(WIDE)
    mean = tl.sum(total, 0)[None, :]
    for first in range(begin, end, EDGES):
        _, at, inside = _entries(perm, first, end, channels, HAS_PERM, EDGES, BLOCK)
        share = tl.load(weight + at, mask=inside, other=0.0).to(WIDE)
        tl.store(out + at, share * (tl.load(grad + at, mask=inside, other=0.0).to(WIDE) - mean), mask=inside)


def extremum_rows(src: Tensor, rowptr: Tensor, perm: Tensor | None, largest: bool) -> tuple[Tensor, Tensor]:
    """Find the first largest or smallest entry of each row and channel, and its edge. [num_rows, channels]."""
    src, num_rows, (num_edges, channels) = src.contiguous(), rowptr.shape[0] - 1, src.shape
    out = src.new_empty(num_rows, channels)
    arg = torch.empty_like(out, dtype=torch.int64)
    if out.numel():
        (grid, block), order = _grid(num_rows, channels), rowptr if perm is None else perm
        sizes, choices = (num_edges, channels), (largest, perm is not None, _wide(src), _EDGES, block)
        _launch(_extremum_rows, grid, src, rowptr, order, out, arg, *sizes, *choices)
    return out, arg


def softmax_rows(src: Tensor, rowptr: Tensor, perm: Tensor | None) -> Tensor:
    """Compute the softmax over the edges of each row. [num_edges, channels]."""
    src, channels = src.contiguous(), src.shape[1]
    out = torch.empty_like(src)
    if out.numel():
        (grid, block), order = _grid(rowptr.shape[0] - 1, channels), rowptr if perm is None else perm
        choices = greatest_zero(src.dtype), perm is not None, _wide(src), _EDGES, block
        _launch(_softmax_rows, grid, src, rowptr, order, out, channels, *choices)
    return out


def softmax_backward_rows(grad: Tensor, weight: Tensor, rowptr: Tensor, perm: Tensor | None) -> Tensor:
    """Compute `weight * (grad - sum(weight * grad))` with sums over the edges of each row. [num_edges, channels]."""
    grad, weight, channels = grad.contiguous(), weight.contiguous(), weight.shape[1]
    out = torch.empty_like(weight)
    if out.numel():
        (grid, block), order = _grid(rowptr.shape[0] - 1, channels), rowptr if perm is None else perm
        choices = perm is not None, _wide(weight), _EDGES, block
        _launch(_softmax_backward_rows, grid, grad, weight, rowptr, order, out, channels, *choices)
    return out

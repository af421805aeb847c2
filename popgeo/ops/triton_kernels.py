"""Sums over the edges of each row in Triton: one program per row and block of channels, no atomics.

`popgeo.ops.sum_on_device` imports this file if Triton is installed. Each sum has one order, so all runs give the
same bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_WIDE = {torch.float64: tl.float64}  # everything else sums in float32


@triton.jit
def _sum_rows(  # type: ignore[no-untyped-def]
    src, rowptr, perm, out, channels,
    PRODUCT: tl.constexpr, HAS_PERM: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    total = tl.full([BLOCK], 1 if PRODUCT else 0, WIDE)
    for place in range(tl.load(rowptr + row).to(tl.int64), tl.load(rowptr + row + 1).to(tl.int64)):
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
    for place in range(tl.load(rowptr + row).to(tl.int64), tl.load(rowptr + row + 1).to(tl.int64)):
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


def sum_rows(src: Tensor, rowptr: Tensor, perm: Tensor | None, product: bool = False) -> Tensor:
    """Sum or multiply the rows `perm[rowptr[i]:rowptr[i + 1]]` of `src` for each `i`. [num_rows, channels]."""
    src, num_rows = src.contiguous(), rowptr.shape[0] - 1
    out = src.new_empty(num_rows, src.shape[1])
    if out.numel():
        grid, block = _grid(*out.shape)
        order = rowptr if perm is None else perm
        _launch(_sum_rows, grid, src, rowptr, order, out, src.shape[1], product, perm is not None, _wide(src), block)
    return out


def cfconv(x: Tensor, w: Tensor, sender: Tensor, rowptr: Tensor, perm: Tensor | None) -> Tensor:
    """Sum `x[sender[e]] * w[e]` over the edges of each row, as `sum_rows` does. [num_rows, channels]."""
    x, w, sender = x.contiguous(), w.contiguous(), sender.contiguous()
    out = x.new_empty(rowptr.shape[0] - 1, x.shape[1])
    if out.numel():
        grid, block = _grid(*out.shape)
        order = rowptr if perm is None else perm
        sizes = x.shape[1], perm is not None, _wide(x), block
        _launch(_cfconv_rows, grid, x, w, sender, rowptr, order, out, *sizes)
    return out


def products(x: Tensor, grad: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """Compute `x[src[e]] * grad[dst[e]]` for each edge. [num_edges, channels]."""
    x, grad, src, dst = x.contiguous(), grad.contiguous(), src.contiguous(), dst.contiguous()
    out = x.new_empty(src.shape[0], x.shape[1])
    if out.numel():
        grid, block = _grid(*out.shape)
        _launch(_products, grid, x, grad, src, dst, out, x.shape[1], _wide(x), block)
    return out


def _launch(kernel: Any, grid: tuple[int, ...], *given: Any, **options: Any) -> None:
    """Run a kernel on the device of its first tensor, which Triton would not choose, with fused multiply-adds."""
    with torch.cuda.device_of(given[0]):
        kernel[grid](*given, **{"enable_fp_fusion": True, **options})


def _grid(rows: int, channels: int) -> tuple[tuple[int, int], int]:
    block = min(128, triton.next_power_of_2(channels))
    return (rows, triton.cdiv(channels, block)), block


def _wide(tensor: Tensor):  # type: ignore[no-untyped-def]
    return _WIDE.get(tensor.dtype, tl.float32)

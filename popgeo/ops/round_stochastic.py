"""Stochastic rounding: rounding up or down at random, so that many small changes of a float16 weight add up."""

import struct

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops.half_precision import HALVES
from popgeo.ops.register_op import register

_LOW, _WRAP = (1 << 32) - 1, 1 << 64
_pack = struct.Struct("6q").pack  # RoundCall


def round_stochastic(x: Tensor, counter: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    """Round each element at random to one of its two neighbors in a narrower type, more often to the nearer one.

    The probability of rounding up is the distance to the lower neighbor, divided by the distance between both. So the
    expectation is the element itself: exactly in bfloat16 and in the normal range of float16, and up to 2^-55 among
    float16's denormal numbers. Numbers that the type represents exactly do not change. In float16, numbers from 65,504
    to 65,536 become 65,504 or infinity, larger numbers become infinity, and float32's denormal numbers become 0. NaN
    stays NaN.

    Random numbers depend only on the counter and on an element's place: they are the same for any number of threads,
    with and without the compiled library.

    Args:
        x: Numbers in float32, of any shape.
        counter: Seed of the random numbers. int64, one element
        dtype: `torch.float16` or `torch.bfloat16`.

    Returns:
        Rounded numbers of the same shape.

    Raises:
        ValueError: `x`, `counter` or `dtype` has a different type.

    Example:
        >>> x = torch.full((200_000,), 1 + 2**-12)  # a quarter of the way from 1 to the next float16
        >>> rounded = round_stochastic(x, torch.tensor(7))
        >>> rounded.unique().tolist(), round(float((rounded > 1).float().mean()), 2)
        ([1.0, 1.0009765625], 0.25)
    """
    return _ROUND(x, counter, dtype)


def _keys(counter: Tensor) -> tuple[Tensor, Tensor]:
    """Return two 32-bit words for a counter, computed where it is; the next counter has unrelated words.

    They are number 0 of the counter's stream in `popgeo.random_numbers.hash64`. int64 wraps as 64-bit words do.
    """
    z = counter.reshape(()) + (0x9E3779B97F4A7C15 - _WRAP)
    for bits, factor in ((30, 0xBF58476D1CE4E5B9 - _WRAP), (27, 0x94D049BB133111EB - _WRAP), (31, 1)):
        z = (z ^ ((z >> bits) & (_WRAP >> bits) - 1)) * factor  # a shift that fills with zeros
    return z & _LOW, (z >> 32) & _LOW


def _check(x: Tensor, counter: Tensor, dtype: torch.dtype) -> None:
    if x.dtype is not torch.float32 or dtype not in HALVES:
        raise ValueError(f"Rounding is from torch.float32 to one of {HALVES}, not from {x.dtype} to {dtype}.")
    if counter.dtype is not torch.int64 or counter.numel() != 1:
        given = f"{counter.dtype} of shape {list(counter.shape)}"
        raise ValueError(f"The counter is {given}; it is one torch.int64, such as torch.tensor(7).")


def _round(x: Tensor, counter: Tensor, dtype: torch.dtype) -> Tensor:
    if x.is_meta:
        return _fake(x, counter, dtype)
    _check(x, counter, dtype)
    native = library.packed("popgeo_round_stochastic")
    if native is None or x.device.type != "cpu":
        if counter.device != x.device:  # a counter in ordinary memory is read without waiting for a GPU
            counter = torch.full((), int(counter), device=x.device)
        return _round_with_torch(x, *_keys(counter), dtype)
    x, counter = x.contiguous(), counter.cpu()
    out = torch.empty_like(x, dtype=dtype)
    pointers = map(library.address, (x, out, counter))
    if native(_pack(*pointers, x.numel(), dtype is torch.bfloat16, torch.get_num_threads())):
        raise MemoryError("popgeo could not allocate its working memory.")
    return out


def _round_with_torch(x: Tensor, first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """Round by the kernel's steps, on 32-bit words in int64."""
    number = torch.arange(x.numel(), device=x.device).view(x.shape) & _LOW
    random = _mixed((_mixed(number ^ first) + second) & _LOW)
    bits = x.contiguous().view(torch.int32).long() & _LOW
    magnitude, sign = bits & 0x7FFFFFFF, bits >> 31
    rounded = (_to_half if dtype is torch.float16 else _to_bfloat)(magnitude, random)
    return (rounded | (sign << 15)).to(torch.int16).view(dtype)


def _to_half(magnitude: Tensor, random: Tensor) -> Tensor:
    exponent = magnitude >> 23
    base = (exponent - 113).clamp(min=0) << 10
    # The neighbors are 2^shift units of the mantissa apart; a shift above 31 is cut, so that 32-bit words hold 2^shift.
    shift = (126 - exponent).clamp(min=13)
    mantissa = ((magnitude & 0x7FFFFF) | 0x800000) >> (shift - 31).clamp(0, 31)
    kept = shift.clamp(max=31)
    below = (1 << kept) - 1
    rounded = base + (mantissa >> kept) + ((random & below) < (mantissa & below))
    rounded = torch.where(magnitude >= 0x47800000, 0x7C00, rounded)  # 65,536 and beyond
    return torch.where(magnitude > 0x7F800000, 0x7E00, rounded)


def _to_bfloat(magnitude: Tensor, random: Tensor) -> Tensor:
    rounded = (magnitude + (random & 0xFFFF)) >> 16
    return torch.where(magnitude > 0x7F800000, magnitude >> 16 | 0x40, rounded)


def _mixed(x: Tensor) -> Tensor:
    """Permute 32-bit words so that each bit depends on all bits: lowbias32 of the hash prospector."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _LOW
    return x ^ (x >> 16)


def _fake(x: Tensor, counter: Tensor, dtype: torch.dtype) -> Tensor:
    _check(x, counter, dtype)
    return x.new_empty(x.shape, dtype=dtype)


_ROUND = register("round_stochastic(Tensor x, Tensor counter, ScalarType dtype) -> Tensor", kernel=_round, fake=_fake)

"""Lowers reductions. Sums of floating-point numbers have the bits that torch computes with one thread."""

import functools
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.engine.fuse.chain import collapse
from popgeo.engine.program.native_call import NativeCall
from popgeo.engine.program.strided import NUM_DIMS, Area, lowers, require

_CODES = {"sum": 0, "mean": 1, "any": 2, "all": 3, "amax": 4, "amin": 5, "cumsum": 6}
# Torch adds in vectors of 32 bytes on these processors, also where they have wider vectors.
_HAS_TORCHS_ORDER = platform.machine().lower() in ("x86_64", "amd64")


@lowers("aten.cumsum.default")
def lower_running_sum(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower the sums up to each element."""
    source, out = given["self"], results[0]
    require(
        source.dtype is out.dtype and source.dtype in (torch.float32, torch.float64, torch.int64) and source.dim() > 0
    )
    dim = given["dim"] % source.dim()
    order = [dim, *(d for d in range(source.dim()) if d != dim)]
    into, read = (Area.of(one) for one in (out, source))
    require(not into.repeats() and not into.overlaps(read) and len(order) <= NUM_DIMS)
    dims = [(into.shape[d], into.steps[d], read.steps[d]) for d in order]
    return _call("cumsum", dims, into, read, 1)


def _reduced(name: str, results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    source, out = given["self"], results[0]
    dims = given.get("dim")
    listed = [dims] if isinstance(dims, int) else dims or range(source.dim())
    reduced = {d % max(source.dim(), 1) for d in listed if source.dim()}
    require(name not in ("amax", "amin") or source.numel() > 0)
    is_sum = name in ("sum", "mean")
    if name in ("any", "all"):
        expected = torch.bool
    else:
        expected = torch.int64 if is_sum and not source.dtype.is_floating_point else source.dtype
    require(out.dtype is expected and out.is_contiguous() and (name != "mean" or source.dtype.is_floating_point))
    require(not is_sum or _HAS_TORCHS_ORDER or not source.dtype.is_floating_point)
    into, read = (Area.of(one) for one in (out, source))
    require(not into.overlaps(read) and into.address != read.address)
    count = int(np.prod([source.shape[d] for d in reduced]))
    if source.numel() == 0:
        return _call(name, [(0, 0, 0)], into, read, count)
    steps = _result_steps(source, out, reduced, bool(given.get("keepdim")))
    dims = _joined(_in_torchs_order(list(zip(source.shape, steps, read.steps, strict=True))))
    require(len(dims) <= NUM_DIMS)
    return _call(name, dims, into, read, count)


def _call(name: str, dims: Sequence[tuple[int, int, int]], into: Area, read: Area, count: int) -> NativeCall:
    dims = [*dims, *[(1, 0, 0)] * (NUM_DIMS - len(dims))]
    sizes, out_steps, in_steps = zip(*dims, strict=True)
    words = [_CODES[name], count, int(np.prod(into.shape)), *sizes]
    words += [into.address, into.kind, *out_steps, read.address, read.kind, *in_steps]
    return NativeCall(function="popgeo_reduction", words=np.array(words, np.int64))


def _result_steps(source: Tensor, out: Tensor, reduced: set[int], keepdim: bool) -> list[int]:
    """Return the result's step for each dimension of the operand: 0 where it is reduced."""
    steps = iter(out.stride())
    if not keepdim:
        return [0 if d in reduced else next(steps) for d in range(source.dim())]
    return [
        0 if d in reduced and n != 1 else next_step
        for d, (n, next_step) in enumerate(zip(source.shape, steps, strict=True))
    ]


def _in_torchs_order(dims: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return dimensions in the order in which torch visits them, the innermost first: reduced ones, then by steps."""
    dims = dims[::-1]
    for k in range(1, len(dims)):
        here = k
        for before in range(k - 1, -1, -1):
            comes_later = _comes_later(dims[before], dims[here])
            if comes_later is None:
                continue
            if not comes_later:
                break
            dims[before], dims[here] = dims[here], dims[before]
            here = before
    return dims


def _comes_later(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool | None:
    """Return whether torch sorts a dimension behind another one; None if torch does not sort these two."""
    if (one[1] == 0) != (other[1] == 0):
        return other[1] == 0
    for step, second in zip(one[1:], other[1:], strict=True):
        if step == 0 or second == 0:
            continue
        if step != second:
            return step > second
        if one[0] > other[0]:
            return True
    return None


def _joined(dims: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return neighboring dimensions joined where they are one dimension in memory."""
    long = [dim for dim in dims if dim[0] != 1] or dims[-1:] or [(1, 0, 0)]
    shape, *steps = zip(*reversed(long), strict=True)
    sizes, (out_steps, in_steps) = collapse(shape, steps)
    return list(zip(sizes, out_steps, in_steps, strict=True))[::-1]


# Torch's names of each reduction.
_NAMES = {
    "sum": "sum.default sum.dim_IntList", "mean": "mean.default mean.dim", "any": "any.default any.dim any.dims",
    "all": "all.default all.dim all.dims", "amax": "amax.default max.default", "amin": "amin.default min.default",
}  # fmt: skip
for _name, _overloads in _NAMES.items():
    lowers(*(f"aten.{one}" for one in _overloads.split()))(functools.partial(_reduced, _name))

"""Replacements for operations of torch that its ONNX converter cannot convert, or converts wrongly.

The converter makes three silent errors. It writes sums of rows as `ScatterND`, which onnxruntime adds on several
threads without a lock, so sums are wrong now and then. It writes means of rows without a reduction. It computes
quotients of integers in float32. Here sums become `ScatterElements`, which runs in one thread.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

_ATEN = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of operations into operations that the converter writes correctly.

    ONNX has no operations for derivatives, but torch can decompose them.
    """
    of_torch = {op: form for op, form in decomposition_table.items() if "backward" in str(op)}
    return of_torch | {
        _ATEN.index_add.default: _index_add,
        _ATEN.index_put.default: _index_put,
        _ATEN._unsafe_index_put.default: _index_put,
        _ATEN.scatter_reduce.two: _scatter_reduce,
        _ATEN.atan2.default: _atan2,
        _ATEN.sort.stable: lambda x, *, stable, dim=-1, descending=False: _ATEN.sort.default(x, dim, descending),
    }


def translations() -> Mapping[Any, Callable[..., Any]]:
    """Return translations to ONNX of operations that the converter gets wrong and torch cannot decompose."""
    from onnxscript import opset18 as op

    def quotient(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
        made, is_whole = op.Div(a, b), a.dtype.is_integer()  # of whole numbers towards zero
        if rounding_mode == "floor":  # the remainder has the sign of the divisor
            return op.Div(op.Sub(a, op.Mod(a, b)), b) if is_whole else op.Floor(made)
        if rounding_mode is None or is_whole:
            return made
        return op.Where(op.Less(made, op.CastLike(0.0, made)), op.Ceil(made), op.Floor(made))

    def floor_quotient(a: Any, b: Any) -> Any:
        return quotient(a, b, "floor")

    return {_ATEN.div.Tensor_mode: quotient, _ATEN.floor_divide.default: floor_quotient}


def _index_add(into: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    shape = [1] * source.dim()
    shape[dim] = -1
    source = source if alpha == 1 else source * alpha
    return into.scatter_add(dim, index.to(torch.int64).view(shape).expand_as(source), source)


def _index_put(into: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """Convert `index_put` with several indices that adds values. The converter handles all other calls."""
    leading = [index for index in indices if index is not None]
    if not accumulate or len(leading) < len(indices) or any(index.dtype == torch.bool for index in leading):
        return NotImplemented
    sizes, rest = into.shape[: len(leading)], into.shape[len(leading) :]
    place: Any = 0
    for index, size in zip(torch.broadcast_tensors(*leading), sizes, strict=True):
        place = place * size + torch.where(index < 0, index + size, index)
    rows = values.expand(*place.shape, *rest).reshape(place.numel(), *rest)
    flat = into.reshape(sizes.numel(), *rest)
    return _index_add(flat, 0, place.reshape(-1), rows).view(into.shape)


def _scatter_reduce(
    into: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Convert a mean to a sum divided by a count. The converter handles all other reductions."""
    if reduce != "mean":
        return NotImplemented
    old = into if include_self else into.scatter(dim, index, torch.zeros_like(src))
    count = torch.full_like(into, int(include_self)).scatter_add(dim, index, torch.ones_like(src))
    mode = None if into.is_floating_point() else "floor"
    return torch.div(old.scatter_add(dim, index, src), count.clamp(min=1), rounding_mode=mode)


def _atan2(y: Tensor, x: Tensor) -> Tensor:
    """Convert `atan2`. The converter's own version returns -pi instead of pi on the negative x axis."""
    angle = torch.atan(y / x)
    left = torch.where(y < 0, angle - math.pi, angle + math.pi)
    return torch.where(x < 0, left, torch.where(x == 0, torch.sign(y) * (math.pi / 2), angle))

"""Comparison of many tensors with their earlier values, in one call."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, cuda

from popgeo.native import library
from popgeo.native.plain_tensor import lies_in_memory
from popgeo.ops import sum_on_device

_TYPES = {torch.float32: 1, torch.float64: 2}  # the same numbers as in csrc/near_tensors.cpp


def near(tensors: Sequence[Tensor], before: Sequence[Tensor], limits: Sequence[float]) -> Callable[..., bool]:
    """Return a function that checks that no tensor is farther from its earlier values than its limit.

    The distance is the 2-norm of the difference; NaN counts as near. With a limit of 0, tensors of any type must be
    equal. The function reads the present memory of the tensors, and keeps it alive.

    With `False` a call on a GPU returns the answer to the call before the last one, True without such a call, and asks
    for a later one. So it waits for no work after that call, and processes with the same tensors get the same answer in
    the same call.

    Example:
        >>> weight = torch.ones(4)
        >>> is_near = near([weight], [weight.clone()], [0.5])
        >>> is_near(), weight.add_(0.3), is_near()
        (True, tensor([1.3000, 1.3000, 1.3000, 1.3000]), False)
    """
    pairs = [(one.detach(), other) for one, other in zip(tensors, before, strict=True)]
    if any(one.numel() and sum_on_device.serves(one) for one in tensors):
        return _NearOnDevice(pairs, limits)
    is_plain = all(t.is_contiguous() and lies_in_memory(t) for pair in pairs for t in pair if t.numel())
    types = [_TYPES[one.dtype] if limit else 0 for one, limit in zip(tensors, limits, strict=True)]
    words = [(a.data_ptr(), b.data_ptr(), a.nbytes, kind, 0) for (a, b), kind in zip(pairs, types, strict=True)]
    table = np.array(words, np.int64).reshape(-1, 5)
    table[:, 4] = np.array(limits, np.float64).view(np.int64)

    def is_near(waits: bool = True) -> bool:
        native = library.function("popgeo_are_near", "Pq", "q") if is_plain else None
        if native is not None:
            return bool(native(table.ctypes.data, len(table)))
        limited = zip(pairs, limits, strict=True)
        return all(not float((a - b).norm()) > limit if limit else torch.equal(a, b) for (a, b), limit in limited)

    return is_near


class _NearOnDevice:
    """The comparison on a GPU: a few operations for all tensors, and one answer, read now or two calls later."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], limits: Sequence[float]) -> None:
        limited = [(*pair, limit) for pair, limit in zip(pairs, limits, strict=True) if limit and pair[0].numel()]
        self._equal = [pair for pair, limit in zip(pairs, limits, strict=True) if not limit]
        self._present, self._before = [one for one, _, _ in limited], [other for _, other, _ in limited]
        self._device = next(one.device for one, _ in pairs if one.numel())
        self._limits = torch.tensor([limit for *_, limit in limited], dtype=torch.float64, device=self._device)

    @cached_property
    def _asked(self) -> Iterator[tuple[Tensor, Any, Any]]:
        """Places of the last two answers, in turn, each with an event after the answer's arrival."""
        answers = [torch.ones(1, dtype=torch.bool, pin_memory=self._device.type == "cuda") for _ in range(2)]
        return itertools.cycle([(one, one.numpy(), cuda.Event(blocking=True)) for one in answers])

    def __call__(self, waits: bool = True) -> bool:
        if waits:
            return bool(self._ask())
        answer, in_memory, has_arrived = next(self._asked)
        has_arrived.synchronize()  # at once if the place has no answer yet
        earlier = bool(in_memory[0])
        answer.copy_(self._ask(), non_blocking=True)
        has_arrived.record(cuda.current_stream(self._device))
        return earlier

    @torch.no_grad()
    def _ask(self) -> Tensor:
        far = [(one != other).any() for one, other in self._equal]
        if self._present:
            apart = torch._foreach_norm(torch._foreach_sub(self._present, self._before), 2, torch.float64)
            far.append((torch.stack(apart) > self._limits).any())
        return ~torch.stack(far).any()

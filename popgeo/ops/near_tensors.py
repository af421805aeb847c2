"""Comparison of many tensors with their earlier values, in one call."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from popgeo.native import library
from popgeo.native.plain_tensor import lies_in_memory

_TYPES = {torch.float32: 1, torch.float64: 2}  # the same numbers as in csrc/near_tensors.cpp


def near(tensors: Sequence[Tensor], before: Sequence[Tensor], limits: Sequence[float]) -> Callable[[], bool]:
    """Return a function that checks that no tensor is farther from its earlier values than its limit.

    The distance is the 2-norm of the difference; NaN counts as near. With a limit of 0, tensors of any type must be
    equal. The function reads the present memory of the tensors, and keeps it alive.

    Example:
        >>> weight = torch.ones(4)
        >>> is_near = near([weight], [weight.clone()], [0.5])
        >>> is_near(), weight.add_(0.3), is_near()
        (True, tensor([1.3000, 1.3000, 1.3000, 1.3000]), False)
    """
    pairs = [(one.detach(), other) for one, other in zip(tensors, before, strict=True)]
    is_plain = all(t.is_contiguous() and lies_in_memory(t) for pair in pairs for t in pair if t.numel())
    types = [_TYPES[one.dtype] if limit else 0 for one, limit in zip(tensors, limits, strict=True)]
    words = [(a.data_ptr(), b.data_ptr(), a.nbytes, kind, 0) for (a, b), kind in zip(pairs, types, strict=True)]
    table = np.array(words, np.int64).reshape(-1, 5)
    table[:, 4] = np.array(limits, np.float64).view(np.int64)

    def is_near() -> bool:
        native = library.function("popgeo_are_near", "Pq", "q") if is_plain else None
        if native is not None:
            return bool(native(table.ctypes.data, len(table)))
        limited = zip(pairs, limits, strict=True)
        return all(not float((a - b).norm()) > limit if limit else torch.equal(a, b) for (a, b), limit in limited)

    return is_near

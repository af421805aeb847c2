"""How close results are, in a model's own nesting."""

from typing import Any

import torch
from torch import Tensor


def allclose(a: Any, b: Any, **kwargs: Any) -> bool:
    """Whether tensors, or lists and tuples of them, are `torch.allclose` one by one.

    Args:
        a: A tensor, or tensors in lists and tuples.
        b: Likewise.
        kwargs: What `torch.allclose` takes.

    Example:
        >>> allclose((torch.ones(1), [torch.zeros(2)]), (torch.ones(1), [torch.zeros(2)]))
        True
        >>> allclose((torch.ones(1),), (torch.ones(1), torch.ones(1)))
        False
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.allclose(a, b, **kwargs)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(allclose(one, other, **kwargs) for one, other in zip(a, b, strict=True))
    return bool(a == b)

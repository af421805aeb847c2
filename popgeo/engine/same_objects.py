"""Compares nested lists and dictionaries at the speed of Python's own `==`, with tensors compared by identity."""

from typing import Any

from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.overrides import TorchFunctionMode


class _IdentityComparison(TorchFunctionMode):
    """A mode of torch in which `==` of two tensors raises, so that a tensor equals only itself.

    An interrupt right after the mode was entered can leave it active. It then changes nothing, since `comparing` is
    False, and the next comparison removes it.
    """

    comparing = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.comparing:
            raise ValueError("Tensors are compared by identity here.")
        return func(*args, **(kwargs or {}))


def holds_the_same(one: Any, other: Any) -> bool:
    """Return whether two nests of lists and dictionaries contain the same tensor objects and equal other values.

    Python's `==` compares identity first and equality only after that, all in C. The mode makes equality of tensors
    fail; without it, two different tensors of one element could count as equal.

    Example:
        >>> import torch
        >>> rate = torch.ones(1)
        >>> holds_the_same({"lr": rate, "eps": [1e-8]}, {"lr": rate, "eps": [1e-8]})
        True
        >>> holds_the_same([rate], [torch.ones(1)])
        False
    """
    while (depth := _len_torch_function_stack()) and isinstance(_get_function_stack_at(depth - 1), _IdentityComparison):
        _pop_torch_function_stack()
    mode = _IdentityComparison()
    _push_on_torch_function_stack(mode)
    try:
        mode.comparing = True
        return bool(one == other)
    except (RuntimeError, TypeError, ValueError):
        return False
    finally:
        mode.comparing = False
        _pop_torch_function_stack()

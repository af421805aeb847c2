"""Compares nests that hold tensors as fast as Python compares lists: tensors are compared by identity."""

from typing import Any

from torch._C import _get_function_stack_at, _len_torch_function_stack
from torch.overrides import TorchFunctionMode, _pop_mode


class _IdentityComparison(TorchFunctionMode):
    """While it compares two tensors cannot be compared, so that only the same tensor counts as equal to itself.

    An interrupt right after it has been entered leaves it behind. Then it compares nothing, lets everything through,
    and goes at the next comparison.
    """

    comparing = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.comparing:
            raise ValueError("Two tensors are neither equal nor unequal.")
        return func(*args, **(kwargs or {}))


def holds_the_same(one: Any, other: Any) -> bool:
    """Whether two nests of lists and dictionaries hold the same tensors, and next to them what is equal.

    Python looks at identity first and at equality only if that fails, all in C; two tensors of one element would
    pass for the same there if they were compared.

    Example:
        >>> import torch
        >>> rate = torch.ones(1)
        >>> holds_the_same({"lr": rate, "eps": [1e-8]}, {"lr": rate, "eps": [1e-8]})
        True
        >>> holds_the_same([rate], [torch.ones(1)])
        False
    """
    while (depth := _len_torch_function_stack()) and isinstance(_get_function_stack_at(depth - 1), _IdentityComparison):
        _pop_mode()
    with _IdentityComparison() as mode:
        try:
            mode.comparing = True
            return bool(one == other)
        except (RuntimeError, TypeError, ValueError):
            return False
        finally:
            mode.comparing = False

"""Compares nests that hold tensors as fast as Python compares lists: a tensor is the same or it is another."""

from typing import Any

from torch.overrides import TorchFunctionMode


class _NoTensorEquals(TorchFunctionMode):
    """Within it two tensors cannot be compared, so that only the same tensor counts as equal to itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ValueError("Two tensors are neither equal nor unequal.")


_NO_TENSOR_EQUALS = _NoTensorEquals()


def holds_the_same(one: Any, other: Any) -> bool:
    """Whether two nests of lists and dictionaries hold the same tensors, and beside them what is equal.

    Python looks at identity first and at equality only where that fails, all in C; two tensors of one element would
    pass for the same there if they were compared.

    Example:
        >>> import torch
        >>> rate = torch.ones(1)
        >>> holds_the_same({"lr": rate, "eps": [1e-8]}, {"lr": rate, "eps": [1e-8]})
        True
        >>> holds_the_same([rate], [torch.ones(1)])
        False
    """
    try:
        with _NO_TENSOR_EQUALS:
            return bool(one == other)
    except (RuntimeError, TypeError, ValueError):
        return False

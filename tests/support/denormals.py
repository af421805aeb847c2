"""Count denormal numbers by their bits, since they equal zero in a thread that flushes them."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# For each dtype the integer dtype of its width, and the number of bits of its fraction.
_BITS = {
    torch.float32: (torch.int32, 23),
    torch.float64: (torch.int64, 52),
    torch.bfloat16: (torch.int16, 7),
}


def count_denormals(tensor: Tensor) -> int:
    """Count the elements that are not zero and too small to be normal.

    Example:
        >>> count_denormals(torch.tensor([0.0, 1e-40, -1e-45, 1e-37]))
        2
    """
    integer, width = _BITS[tensor.dtype]
    bits = tensor.detach().contiguous().view(integer)
    exponent = bits.bitwise_and(torch.iinfo(integer).max ^ ((1 << width) - 1))
    return int(((exponent == 0) & (bits.bitwise_and((1 << width) - 1) != 0)).sum())


class DenormalsMade(TorchDispatchMode):
    """A mode that records each operation with denormal numbers in its results: activations and gradients.

    Attributes:
        found: Name of the operation, and number of denormal elements.
        num_results: Number of inspected tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int]] = []
        self.num_results = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        looked_at = results if isinstance(results, tuple | list) else (results,)
        if "popgeo.interaction.default" in str(func):
            looked_at = looked_at[:1]  # the second result has unwritten, unused memory between its rows
        for tensor in looked_at:
            if isinstance(tensor, Tensor) and tensor.dtype in _BITS and "empty" not in str(func):
                self.num_results += 1
                if count := count_denormals(tensor):
                    self.found.append((str(func), count))
        return results

"""Sums of gradients in pairs, with the same bits for any division of micro-batches over replicas and processes."""

from collections.abc import Sequence

import torch
from torch import Tensor


class PairwiseSum:
    """The sum of lists of tensors in one order: pairs of neighbors first, then pairs of these sums, and so on.

    If the numbers of micro-batches and of processes are powers of two, the sum has the same bits if several processes
    add up their own micro-batches first and then these sums. Each pending sum needs its own memory: four for sixteen
    micro-batches.

    Args:
        places: Where `finish` writes the sum.

    Example:
        >>> place = torch.zeros(1)
        >>> total = PairwiseSum([place])
        >>> for number in (1.0, 2.0, 3.0):
        ...     total.add([torch.tensor([number])])
        >>> total.finish(), place
        (None, tensor([6.]))
    """

    def __init__(self, places: Sequence[Tensor]) -> None:
        self._places = list(places)
        self._open: list[tuple[int, list[Tensor]]] = []  # the number of doublings of each sum, which descends

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add the next tensors of the sum. They are copied."""
        doublings, added = 0, [tensor.clone() for tensor in tensors]
        while self._open and self._open[-1][0] == doublings:
            _, before = self._open.pop()
            torch._foreach_add_(before, added)
            doublings, added = doublings + 1, before
        self._open.append((doublings, added))

    def finish(self) -> None:
        """Write the sum to its places, and begin a new one."""
        _, total = self._open.pop()
        while self._open:
            _, before = self._open.pop()
            torch._foreach_add_(before, total)
            total = before
        torch._foreach_copy_(self._places, total)

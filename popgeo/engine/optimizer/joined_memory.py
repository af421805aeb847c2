"""Memory of the step's own in which tensors of others lie side by side: copies each way, and pieces that are shown."""

import ctypes
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor

from popgeo.native import library


class Copies:
    """Tensors that belong to others, and a place for each in memory of the step's own.

    Args:
        owned: What belongs to others, in the memory where it is now.
        places: As many tensors of the same shapes and types.

    Example:
        >>> weights, joined = [torch.ones(2), torch.zeros(1)], torch.empty(3)
        >>> copies = Copies(weights, joined.split([2, 1]))
        >>> copies.take()
        >>> joined.add_(1)
        tensor([2., 2., 1.])
        >>> copies.give()
        >>> weights
        [tensor([2., 2.]), tensor([1.])]
    """

    def __init__(self, owned: Sequence[Tensor], places: Sequence[Tensor]) -> None:
        self._owned, self._places, count = list(owned), list(places), len(owned)
        self._in_one_piece = all(tensor.is_contiguous() for tensor in (*owned, *places))
        own, joined = ((ctypes.c_void_p * count)(*map(Tensor.data_ptr, some)) for some in (owned, places))
        sizes = (ctypes.c_int64 * count)(*(tensor.nbytes for tensor in owned))
        self._taken, self._given = (own, joined, sizes, count), (joined, own, sizes, count)

    def take(self) -> None:
        """Copies what the tensors hold to the places."""
        native = library.function("popgeo_update_bytes", "PPPq", "q")
        if native is None or not self._in_one_piece:
            torch._foreach_copy_(self._places, self._owned)
        else:
            native(*self._taken)

    def give(self) -> None:
        """Copies what the places hold to the tensors."""
        native = library.function("popgeo_update_bytes", "PPPq", "q")
        if native is None or not self._in_one_piece:
            torch._foreach_copy_(self._owned, self._places)
        else:
            native(*self._given)


def apart(joined: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Pieces of a contiguous tensor, one after the other, in its memory, each with a storage of its own.

    Whoever looks at storages (`torch.save`, safetensors, `copy.deepcopy`) finds the piece alone.

    Example:
        >>> joined = torch.arange(3.0)
        >>> first, second = apart(joined, [(2,), (1, 1)])
        >>> first.zero_(), second.untyped_storage().nbytes(), joined
        (tensor([0., 0.]), 4, tensor([0., 0., 2.]))
    """
    memory = joined.detach().view(-1).view(torch.uint8).numpy()
    sizes = [prod(shape) * joined.itemsize for shape in shapes]
    pieces = [memory[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
    return [torch.from_numpy(piece).view(joined.dtype).view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill a piece of memory, in whatever order.

    Example:
        >>> [is_dense(one) for one in (torch.ones(2, 3).t(), torch.ones(2, 3)[:, :2], torch.ones(1).expand(2))]
        [True, False, False]
    """
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def overlap(tensors: Sequence[Tensor]) -> bool:
    """Whether memory of one tensor begins within the memory of another.

    Example:
        >>> rows = torch.ones(2, 3)
        >>> overlap([rows[0], rows[1]]), overlap([rows, rows[1]])
        (False, True)
    """
    spans = [
        (one.data_ptr(), sum((n - 1) * step for n, step in zip(one.shape, one.stride(), strict=True)) * one.itemsize)
        for one in tensors
        if one.numel()
    ]
    return any(second <= first + reach for (first, reach), (second, _) in pairwise(sorted(spans)))

"""Copies between separate tensors and one joined tensor, and pieces of joined tensors."""

import ctypes
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor

from popgeo.native import library


def copier(given: Sequence[Tensor], places: Sequence[Tensor]) -> Callable[[], bool]:
    """Return a function that copies tensors to places of the same shapes and types.

    The function returns whether a bit changed. Without compiled kernels, and if a tensor is not contiguous, it always
    returns True.

    Example:
        >>> weights, joined = [torch.ones(2), torch.zeros(1)], torch.empty(3)
        >>> take, give = copier(weights, joined.split([2, 1])), copier(joined.split([2, 1]), weights)
        >>> take(), joined.add_(1), give()
        (True, tensor([2., 2., 1.]), True)
        >>> weights
        [tensor([2., 2.]), tensor([1.])]
    """
    given, places, count = list(given), list(places), len(given)  # keeps their memory alive
    in_one_piece = all(tensor.is_contiguous() for tensor in (*given, *places))
    addresses = [(ctypes.c_void_p * count)(*map(Tensor.data_ptr, some)) for some in (given, places)]
    sizes = (ctypes.c_int64 * count)(*(tensor.nbytes for tensor in given))

    def copy() -> bool:
        native = library.function("popgeo_update_bytes", "PPPq", "q") if in_one_piece else None
        if native is not None:
            return bool(native(*addresses, sizes, count))
        torch._foreach_copy_(places, given)
        return True

    return copy


def apart(joined: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Cut a contiguous tensor into consecutive pieces that share its memory, each with a separate storage object.

    So `torch.save`, safetensors and `copy.deepcopy`, which read whole storages, see only the piece.

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
    """Check whether the elements of a tensor fill one stretch of memory, in any order.

    Example:
        >>> [is_dense(one) for one in (torch.ones(2, 3).t(), torch.ones(2, 3)[:, :2], torch.ones(1).expand(2))]
        [True, False, False]
    """
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def overlap(tensors: Sequence[Tensor]) -> bool:
    """Check whether the memory of a tensor begins inside the memory of another tensor.

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

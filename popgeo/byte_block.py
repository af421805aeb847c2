"""Several tensors in one piece of memory, so that a single copy moves all of them."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor

ALIGNMENT = 256  # bytes; the best alignment for a GPU, and a multiple of every type's and processor's alignment
MOST_UNUSED = 1 << 20  # bytes of other tensors that one copy may move, in place of a copy of each tensor


class ByteBlock:
    """A piece of memory and the tensors that are views of it.

    Args:
        kinds: Shape and type of each tensor.
        starts: Byte at which each tensor begins. Default: one after another, aligned.
        device: Device of the memory. Default: the processor.
        pin_memory: Whether to use page-locked memory, from which a GPU copies by itself. Default: False.

    Attributes:
        memory: The whole piece. uint8 [num_bytes]
        tensors: One view per kind, in the order of `kinds`.
        starts: Byte at which each tensor begins.

    Example:
        >>> block = ByteBlock([((2, 3), torch.float32), ((4,), torch.bool)])
        >>> [tensor.shape for tensor in block.tensors], block.memory.shape
        ([torch.Size([2, 3]), torch.Size([4])], torch.Size([512]))
    """

    def __init__(
        self,
        kinds: Sequence[tuple[Sequence[int], torch.dtype]],
        *,
        starts: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
        pin_memory: bool = False,
    ) -> None:
        sizes = [prod(shape) * dtype.itemsize for shape, dtype in kinds]
        if starts is None:
            *starts, end = accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0)
        else:
            end = max(start + size for start, size in zip(starts, sizes, strict=True))
        self.starts, self.memory = starts, torch.empty(end, dtype=torch.uint8, device=device, pin_memory=pin_memory)
        self.tensors = [
            self.memory[start : start + size].view(dtype).view(tuple(shape))
            for (shape, dtype), start, size in zip(kinds, starts, sizes, strict=True)
        ]

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors on the same device into the block, in one copy if they are in one block of the same layout."""
        pairs = list(zip(self.tensors, tensors, strict=True))
        are_alike = all(place.shape == tensor.shape and place.dtype == tensor.dtype for place, tensor in pairs)
        if are_alike and starts_in_one_block(tensors) == self.starts:
            whole = torch.empty(0, dtype=torch.uint8, device=tensors[0].device).set_(tensors[0].untyped_storage())
            used = min(len(whole), len(self.memory))  # one of them may end with the last tensor, and one be padded
            self.memory[:used].copy_(whole[:used], non_blocking=True)
            return
        for place, tensor in pairs:
            place.copy_(tensor.detach(), non_blocking=True)


def starts_in_one_block(tensors: Sequence[Tensor]) -> list[int] | None:
    """Return the byte at which each tensor begins in the block that all of them share.

    The result is None if the tensors share no memory, overlap, are not contiguous, are not aligned, or are a small part
    of the block.

    Example:
        >>> block = ByteBlock([((2, 3), torch.float32), ((4,), torch.bool)])
        >>> starts_in_one_block(block.tensors), starts_in_one_block([torch.ones(2), torch.ones(3)])
        ([0, 256], None)
    """
    if any(t.layout is not torch.strided or not t.is_contiguous() or t.is_conj() or t.is_neg() for t in tensors):
        return None
    if len({tensor.untyped_storage().data_ptr() for tensor in tensors}) != 1:
        return None
    starts = [int(tensor.storage_offset()) * tensor.element_size() for tensor in tensors]
    ranges = sorted((start, start + tensor.nbytes) for start, tensor in zip(starts, tensors, strict=True))
    is_part = ranges[-1][1] > 2 * sum(tensor.nbytes for tensor in tensors) + MOST_UNUSED
    is_aligned = all(start % ALIGNMENT == 0 for start in starts)
    return starts if is_aligned and not is_part and all(one[1] <= two[0] for one, two in pairwise(ranges)) else None

"""Several tensors in one piece of memory, so that a single copy moves all of them."""

from collections.abc import Sequence
from math import prod

import torch

ALIGNMENT = 256  # bytes; the best alignment for a GPU, and a multiple of every type's and processor's alignment


class ByteBlock:
    """A piece of memory and the tensors that are views of it.

    Args:
        kinds: Shape and type of each tensor.
        device: Device of the memory. Default: the processor.
        pin_memory: Whether to use page-locked memory, from which a GPU copies by itself. Default: False.

    Attributes:
        memory: The whole piece. uint8 [num_bytes]
        tensors: One view per kind, in the order of `kinds`.

    Example:
        >>> block = ByteBlock([((2, 3), torch.float32), ((4,), torch.bool)])
        >>> [tensor.shape for tensor in block.tensors], block.memory.shape
        ([torch.Size([2, 3]), torch.Size([4])], torch.Size([512]))
    """

    def __init__(
        self,
        kinds: Sequence[tuple[Sequence[int], torch.dtype]],
        *,
        device: torch.device | str = "cpu",
        pin_memory: bool = False,
    ) -> None:
        sizes = [prod(shape) * dtype.itemsize for shape, dtype in kinds]
        places = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        self.memory = torch.empty(sum(places), dtype=torch.uint8, device=device, pin_memory=pin_memory)
        self.tensors = []
        start = 0
        for (shape, dtype), size, place in zip(kinds, sizes, places, strict=True):
            self.tensors.append(self.memory[start : start + size].view(dtype).view(tuple(shape)))
            start += place

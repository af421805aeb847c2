"""Tensors that a captured step reads at the same place for ever, and how those of a call get there."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.byte_block import ByteBlock


class StaticInputs:
    """The inputs of a captured step on a device, filled by asynchronous copies through two staging blocks in turn.

    A call's tensors in ordinary memory are written into a page-locked block, which one copy on a stream of its own
    brings to the device while the step before still runs; one more copy, on the device, puts them where the step reads.

    Args:
        like: Tensors of the shapes and types of one call.
        device: Where the step runs.
        cuda: `torch.cuda`, or what stands for it in a test.

    Attributes:
        tensors: Where the step reads; all in one block.
    """

    def __init__(self, like: Sequence[Tensor], device: torch.device, cuda: Any = torch.cuda) -> None:
        kinds = [(tensor.shape, tensor.dtype) for tensor in like]
        self._cuda, self._device = cuda, device
        self._block = ByteBlock(kinds, device=device)
        self.tensors = self._block.tensors
        self._stream = cuda.Stream(device)
        self._stages = itertools.cycle([_Stage(kinds, device, cuda) for _ in range(2)])

    @property
    def nbytes(self) -> int:
        """Bytes that one copy moves."""
        return self._block.memory.nbytes

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Puts a call's tensors where the step reads; what is queued on the current stream from here on sees them."""
        if any(tensor.device.type != "cpu" for tensor in tensors):
            for place, tensor in zip(self.tensors, tensors, strict=True):
                place.copy_(tensor.detach(), non_blocking=True)
            return
        stage = next(self._stages)
        stage.has_arrived.synchronize()  # its memory may still be read by the copy before the last
        for place, tensor in zip(stage.host.tensors, tensors, strict=True):
            place.copy_(tensor.detach())
        current = self._cuda.current_stream(self._device)
        with self._cuda.stream(self._stream):
            self._stream.wait_event(stage.is_free)
            stage.there.memory.copy_(stage.host.memory, non_blocking=True)
            stage.has_arrived.record(self._stream)
        current.wait_event(stage.has_arrived)
        self._block.memory.copy_(stage.there.memory, non_blocking=True)
        stage.is_free.record(current)


class _Stage:
    """A block in page-locked memory, one on the device, and when each may be written again."""

    def __init__(self, kinds: Sequence[tuple[Sequence[int], torch.dtype]], device: torch.device, cuda: Any) -> None:
        self.host = ByteBlock(kinds, pin_memory=device.type == "cuda")
        self.there = ByteBlock(kinds, device=device)
        self.has_arrived, self.is_free = cuda.Event(), cuda.Event()

"""How a tensor lies in memory, and torch's marks of what is read as the conjugates, or the negatives, of its memory."""

from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Value


def marks_of(tensor: Tensor) -> tuple[bool, bool]:
    """Whether the elements are conjugates, and whether they are negatives.

    Example:
        >>> marks_of(torch.ones(2)), marks_of(torch.tensor([1j]).conj()), marks_of(torch.tensor([1j]).conj().imag)
        ((False, False), (True, False), (False, True))
    """
    return tensor.is_conj(), tensor.is_neg()


def layout_of(tensor: Tensor) -> dict[str, Any]:
    """Shape, stride, offset, type and marks of a tensor, as keyword arguments of `Value`."""
    place = {"shape": tuple(tensor.shape), "stride": tensor.stride(), "offset": int(tensor.storage_offset())}
    return {**place, "dtype": tensor.dtype, "marks": marks_of(tensor)}


def marked(memory: Tensor, marks: tuple[bool, bool]) -> Tensor:
    """The same memory, read as these marks say; marks that it has already are taken off.

    Example:
        >>> marked(torch.tensor([1j]), (True, False)), marked(torch.tensor([1j]).conj(), (True, False))
        (tensor([0.-1.j]), tensor([0.+1.j]))
    """
    conjugate, negative = marks
    memory = torch._conj(memory) if conjugate else memory
    return torch._neg_view(memory) if negative else memory


def empty_like(value: Value) -> Tensor:
    """A tensor in memory of its own that lies there as a value of a graph does."""
    return marked(torch.empty_strided(value.shape, value.stride, dtype=value.dtype), value.marks)

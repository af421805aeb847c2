"""The memory layout of a tensor, and torch's marks of tensors that read their memory as conjugates or negatives."""

from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Value


def marks_of(tensor: Tensor) -> tuple[bool, bool]:
    """Return whether a tensor reads its memory as conjugates, and whether it reads its memory as negatives.

    Example:
        >>> marks_of(torch.ones(2)), marks_of(torch.tensor([1j]).conj()), marks_of(torch.tensor([1j]).conj().imag)
        ((False, False), (True, False), (False, True))
    """
    return tensor.is_conj(), tensor.is_neg()


def layout_of(tensor: Tensor) -> dict[str, Any]:
    """Return shape, stride, offset, type and marks of a tensor, as keyword arguments of `Value`."""
    place = {"shape": tuple(tensor.shape), "stride": tensor.stride(), "offset": int(tensor.storage_offset())}
    return {**place, "dtype": tensor.dtype, "marks": marks_of(tensor)}


def marked(memory: Tensor, marks: tuple[bool, bool]) -> Tensor:
    """Return a view of the same memory with these marks; a mark that the memory has already is removed.

    Example:
        >>> marked(torch.tensor([1j]), (True, False)), marked(torch.tensor([1j]).conj(), (True, False))
        (tensor([0.-1.j]), tensor([0.+1.j]))
    """
    conjugate, negative = marks
    memory = torch._conj(memory) if conjugate else memory
    return torch._neg_view(memory) if negative else memory


def empty_like(value: Value) -> Tensor:
    """Return an empty tensor in new memory with the layout of a graph's value."""
    return marked(torch.empty_strided(value.shape, value.stride, dtype=value.dtype), value.marks)

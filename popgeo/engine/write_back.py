"""Arguments that a model changes in place: the caller's tensors change too, each micro-batch in its own slice."""

from collections.abc import Sequence

import torch
from torch import Tensor


def write_back(written: Sequence[Tensor], made: Sequence[Tensor | None]) -> None:
    """Gives the caller's tensors what the step left in their place.

    Args:
        written: The caller's tensors, or those slices of them that a micro-batch took.
        made: What a run returned, in the same order, from these on.
    """
    with torch.no_grad():
        for tensor, value in zip(written, made, strict=False):
            assert value is not None  # only gradients may be missing
            tensor.copy_(value)


def check_apart(tensors: Sequence[Tensor], written: Sequence[int]) -> None:
    """Makes sure that what a step changes is seen through no other tensor, as it would not be in a compiled step.

    Args:
        tensors: All that the step is given: arguments first, then state.
        written: Positions of those that it changes.

    Raises:
        ValueError: one of these shares elements with another tensor.

    Example:
        >>> x = torch.zeros(4)
        >>> check_apart([x[:2], x[2:]], written=[0])
        >>> check_apart([x, x[2:]], written=[0])
        Traceback (most recent call last):
            ...
        ValueError: The model changes argument 0 in place, which shares memory with another tensor of the call...
    """
    for position in written:
        for other, tensor in enumerate(tensors):
            if other != position and _share(tensors[position], tensor):
                raise ValueError(
                    f"The model changes argument {position} in place, which shares memory with another tensor of the "
                    "call or of the model; a compiled step would not see the change there. Pass a clone()."
                )


def _share(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have an element in common."""
    storage = one.untyped_storage()
    if not one.numel() or not other.numel() or storage.data_ptr() != other.untyped_storage().data_ptr():
        return False
    (first, last), (start, end) = (_span(tensor) for tensor in (one, other))
    if last <= start or end <= first:
        return False
    touched = torch.zeros(storage.nbytes(), dtype=torch.bool)
    _bytes_of(touched, one).fill_(True)
    return bool(_bytes_of(touched, other).any())


def _span(tensor: Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor lies within."""
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.element_size()


def _bytes_of(storage: Tensor, tensor: Tensor) -> Tensor:
    """The first byte of each of its elements and those that follow it, in a storage of single bytes."""
    size = tensor.element_size()
    start = tensor.data_ptr() - tensor.untyped_storage().data_ptr()
    return storage.as_strided((*tensor.shape, size), (*(size * step for step in tensor.stride()), 1), start)

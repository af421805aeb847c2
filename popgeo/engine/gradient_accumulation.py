"""Gradient accumulation: how the tensors of a call are split into micro-batches, and how their results are joined.

If the model changes an argument in place, each micro-batch changes its own slice. `optimizer/update.py` adds up the
gradients of the micro-batches.
"""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.pytree import Structure
from popgeo.capture.structures import leaves
from popgeo.engine.step_options import OutputMode


def check_batch_dimension(structure: Structure, factor: int) -> None:
    """Checks that every tensor's first dimension is a multiple of `factor`.

    Raises:
        ValueError: one is not; the message names the argument.
    """
    if factor == 1:
        return
    for path, leaf in leaves(structure):
        if not leaf.shape or leaf.shape[0] % factor:
            raise ValueError(
                f"Invalid batch dimension: argument `{path}` has shape {list(leaf.shape)}; the first dimension must "
                f"be a multiple of {factor} = device_iterations x gradient_accumulation x replicas of this process. "
                "Build batches of that many micro-batches, or change the Options."
            )


def micro_batch(tensors: Sequence[Tensor], index: int, factor: int) -> list[Tensor]:
    """The tensors of micro-batch `index` of `factor`.

    Example:
        >>> micro_batch([torch.arange(6)], index=1, factor=3)
        [tensor([2, 3])]
    """
    if factor == 1:
        return list(tensors)
    return [tensor.narrow(0, index * (tensor.shape[0] // factor), tensor.shape[0] // factor) for tensor in tensors]


class CallResults:
    """Collects what the steps of one call return.

    Args:
        mode: Which steps count.
        period: With `every_n`, the last of each that many counts.
        num_steps: Steps of a call.
    """

    def __init__(self, mode: OutputMode, period: int, num_steps: int) -> None:
        self._mode, self._period, self._num_steps = mode, period, num_steps
        self._kept: list[list[Tensor]] = []

    def wants(self, step: int) -> bool:
        """Whether what step `step` of the call returns is kept."""
        if self._mode is OutputMode.FINAL:
            return step == self._num_steps - 1
        return self._mode is not OutputMode.EVERY_N or (step + 1) % self._period == 0

    def add(self, step: int, replica: int, tensors: Sequence[Tensor]) -> None:
        """Keeps copies of what one replica returns in one step."""
        if self._mode is OutputMode.SUM and step > 0:
            for total, tensor in zip(self._kept[replica], tensors, strict=True):
                total += tensor
        else:
            self._kept.append([tensor.clone() for tensor in tensors])

    def join(self) -> list[Tensor]:
        """The kept tensors joined along the first dimension; scalars become a vector unless there is only one."""
        if len(self._kept) == 1:
            return self._kept[0]
        results = zip(*self._kept, strict=True)
        return [torch.cat([tensor.reshape(tensor.shape or (1,)) for tensor in parts]) for parts in results]


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
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    for position in written:
        others = [i for i, storage in enumerate(storages) if storage == storages[position] and i != position]
        seen = [_memory_of(tensors[i]) for i in (position, *others)] if others else []
        if any(np.shares_memory(seen[0], other) for other in seen[1:]):
            raise ValueError(
                f"The model changes argument {position} in place, which shares memory with another tensor of the "
                "call or of the model; a compiled step would not see the change there. Pass a clone()."
            )


def _memory_of(tensor: Tensor) -> np.ndarray:
    """The elements of a tensor of any type, in its memory, as numpy sees them."""
    size = tensor.element_size()
    strides = tuple(step * size for step in tensor.stride())
    told = {"shape": tuple(tensor.shape), "strides": strides, "typestr": f"|V{size}", "data": (tensor.data_ptr(), True)}
    return np.asarray(SimpleNamespace(__array_interface__={**told, "version": 3}))

"""Splits the tensors of a call into micro-batches for gradient accumulation, and joins their results.

If the model changes an argument in place, each micro-batch changes its own slice. `optimizer/update.py` adds up the
gradients of the micro-batches.
"""

import functools
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.pytree import Structure
from popgeo.capture.structures import leaves
from popgeo.engine.step_options import OutputMode


def check_batch_dimension(structure: Structure, factor: int) -> None:
    """Check that the first dimension of every tensor is a multiple of `factor`.

    Raises:
        ValueError: it is not a multiple; the message names the argument.
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
    """Return the tensors of micro-batch number `index` out of `factor` micro-batches.

    Example:
        >>> micro_batch([torch.arange(6)], index=1, factor=3)
        [tensor([2, 3])]
    """
    if factor == 1:
        return list(tensors)
    return [tensor.narrow(0, index * (tensor.shape[0] // factor), tensor.shape[0] // factor) for tensor in tensors]


class CallResults:
    """The results of the steps of one call.

    Args:
        mode: The choice of the steps that return their results.
        period: Steps per returned result in the mode `every_n`; the last of them returns it.
        num_steps: Steps of a call.
    """

    def __init__(self, mode: OutputMode, period: int, num_steps: int) -> None:
        self._mode, self._period, self._num_steps = mode, period, num_steps
        self._kept: list[list[Tensor]] = []

    def wants(self, step: int) -> bool:
        """Return whether the call returns the results of this step."""
        if self._mode is OutputMode.FINAL:
            return step == self._num_steps - 1
        return self._mode is not OutputMode.EVERY_N or (step + 1) % self._period == 0

    def add(self, step: int, replica: int, tensors: Sequence[Tensor]) -> None:
        """Keep copies of one replica's results in one step, or add them to the sum."""
        if self._mode is OutputMode.SUM and step > 0:
            for total, tensor in zip(self._kept[replica], tensors, strict=True):
                total += tensor
        else:
            self._kept.append([tensor.clone() for tensor in tensors])

    def join(self) -> list[Tensor]:
        """Return the kept results, joined along the first dimension; several scalars become a vector."""
        if len(self._kept) == 1:
            return self._kept[0]
        results = zip(*self._kept, strict=True)
        return [torch.cat([tensor.reshape(tensor.shape or (1,)) for tensor in parts]) for parts in results]


def write_back(written: Sequence[Tensor], made: Sequence[Tensor | None]) -> None:
    """Copy values that a step has changed in place to the caller's tensors.

    Args:
        written: The caller's tensors, or the slices of a micro-batch.
        made: The changed values, in the same order.
    """
    with torch.no_grad():
        for tensor, value in zip(written, made, strict=False):
            assert value is not None  # only gradients may be missing
            tensor.copy_(value)


def check_apart(tensors: Sequence[Tensor], written: Sequence[int]) -> None:
    """Check that the elements of tensors which a step changes in place are separate, also from its other tensors.

    A compiled step works on copies, so an element with the same memory would not change there.

    Args:
        tensors: All tensors of the step: arguments first, then state.
        written: Positions of the tensors that the step changes.

    Raises:
        ValueError: a changed tensor shares elements with another tensor, or several of its own elements have one place.

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
        if _overlaps(tensors[position]):
            raise ValueError(
                f"The model changes argument {position} in place, but some of its elements share their place in "
                "memory, as after expand() or unfold(). Pass a clone()."
            )
        others = [i for i, storage in enumerate(storages) if storage == storages[position] and i != position]
        seen = [_memory_of(tensors[i]) for i in (position, *others)] if others else []
        if any(np.shares_memory(seen[0], other) for other in seen[1:]):
            raise ValueError(
                f"The model changes argument {position} in place, which shares memory with another tensor of the "
                "call or of the model; a compiled step would not see the change there. Pass a clone()."
            )


def _overlaps(tensor: Tensor) -> bool:
    """Return whether several elements of a tensor have one place in memory, as after `expand` or `unfold`."""
    end, places = 0, np.zeros((), np.int64)
    steps = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    for step, size in steps:
        if size > 1 and step <= end:
            places = functools.reduce(np.add.outer, (step * np.arange(size) for step, size in steps), places)
            return len(np.unique(places)) < tensor.numel()
        end += step * (size - 1)
    return False  # each dimension steps over the smaller ones


def _memory_of(tensor: Tensor) -> np.ndarray:
    """Return a NumPy array that shares the memory of a tensor of any type."""
    size = tensor.element_size()
    strides = tuple(step * size for step in tensor.stride())
    form = {"shape": tuple(tensor.shape), "strides": strides, "typestr": f"|V{size}", "data": (tensor.data_ptr(), True)}
    return np.asarray(SimpleNamespace(__array_interface__={**form, "version": 3}))

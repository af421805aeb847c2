"""Splits the tensors of a call into micro-batches, and joins results as the output mode says."""

from collections.abc import Sequence

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


class Results:
    """Collects what the steps of one call return.

    Args:
        mode: Which steps count.
        period: With `every_n`, the last of each so many counts.
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
        return [
            torch.cat([tensor.reshape(tensor.shape or (1,)) for tensor in parts])
            for parts in zip(*self._kept, strict=True)
        ]

"""What a call returns: tensors of the types that the machine has, which refuse a backward pass."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.pytree import flatten, unflatten
from popgeo.compat.poptorch.errors import Error

_TYPES = {torch.int64: torch.int32, torch.float64: torch.float32}


def as_results(returned: Any) -> tuple[Any, list[Tensor]]:
    """What a model returns with 64-bit numbers in 32 bits, as an IPU has them, and its tensors.

    Example:
        >>> results, _ = as_results((torch.tensor([1]), torch.zeros(2)))
        >>> results[0].dtype
        torch.int32
    """
    tensors, structure = flatten(returned)
    tensors = [tensor.to(_TYPES.get(tensor.dtype, tensor.dtype)) for tensor in tensors]
    for tensor in tensors:
        tensor.backward = _NoBackward()  # type: ignore[method-assign]  # PopTorch's own way to say so
    return unflatten(structure, tensors), tensors


class _NoBackward:
    """Stands in the place of a result's `backward`."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise Error(
            "backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a trainingModel, "
            "the backwards pass is performed automatically when invoking the model. If you're using an inferenceModel, "
            "you should use a trainingModel instead."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, ()  # so that torch.load(weights_only=True) reads a saved result

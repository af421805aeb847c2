"""The values of a graph that a pass extends."""

import itertools
import math
from collections.abc import Iterable, Sequence

import torch

from popgeo.capture.op_graph import Value


class ValueList(list[Value]):
    """The values of a graph, to which a pass adds new ones.

    Args:
        values: The values of the graph.

    Example:
        >>> values = ValueList([])
        >>> values.new((2, 3), torch.float32), values[0].stride
        (0, (3, 1))
    """

    def __init__(self, values: Iterable[Value]) -> None:
        super().__init__(values)
        self._storages = itertools.count(max((value.storage for value in self), default=-1) + 1)

    def new_storage(self) -> int:
        """Return the number of a storage that no value has."""
        return next(self._storages)

    def add(self, value: Value) -> int:
        """Add a value, and return its number."""
        self.append(value)
        return len(self) - 1

    def new(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Add a contiguous value in a storage of its own, and return its number."""
        return self.add(dense_value(shape, dtype, self.new_storage()))


def dense_value(shape: Sequence[int], dtype: torch.dtype, storage: int) -> Value:
    """Return a contiguous value that begins with its storage."""
    form = {"shape": tuple(shape), "stride": dense_strides(shape), "offset": 0}
    return Value(**form, dtype=dtype, storage=storage, producer=None)  # type: ignore[arg-type]


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous value.

    Example:
        >>> dense_strides((2, 3, 4))
        (12, 4, 1)
    """
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))

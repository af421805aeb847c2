"""The operands of an operation, as planners need them."""

import math
from collections.abc import Callable
from typing import Any

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.plan import Plan

Rule = Callable[[OpGraph, Op, Machine], Plan]
_WORD = 4


def read(graph: OpGraph, op: Op) -> list[Value]:
    """Return the tensors among the arguments of an operation, in order."""
    return [graph.values[v] for v in op.reads()]


def made(graph: OpGraph, op: Op) -> list[Value]:
    """Return the tensors that an operation returns."""
    return [graph.values[v] for v in op.outputs if v is not None]


def tensor(graph: OpGraph, argument: Any) -> Value:
    """Return the tensor of an argument; of a list, the first tensor.

    Raises:
        ValueError: the argument is not a tensor.
    """
    if isinstance(argument, list | tuple):
        return next(graph.values[item.value] for item in argument if isinstance(item, Ref))
    if not isinstance(argument, Ref):
        raise ValueError(f"Expected a tensor among the arguments of an operation, found {argument!r}.")
    return graph.values[argument.value]


def width(value: Value) -> int:
    """Return the bytes of an element on the machine, which keeps numbers of 64 bits in 32 bits.

    Example:
        >>> import torch
        >>> value = Value(shape=(2,), stride=(1,), offset=0, dtype=torch.int64, storage=0, producer=None)
        >>> width(value)
        4
    """
    return min(_WORD, value.dtype.itemsize)


def distinct(value: Value) -> int:
    """Return the number of elements with separate memory; an expanded value has fewer than its size.

    Example:
        >>> import torch
        >>> distinct(Value(shape=(8, 3), stride=(1, 0), offset=0, dtype=torch.float32, storage=0, producer=None))
        8
    """
    return math.prod(size for size, stride in zip(value.shape, value.stride, strict=True) if stride or size == 0)

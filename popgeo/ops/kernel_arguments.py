"""Arguments of the compiled kernels: contiguous tensors by address, with a number for their type."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# The numbers that kernels.cpp gives the types.
FLOAT_DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
NATIVE_DTYPES = FLOAT_DTYPES | {torch.int32: 4, torch.int64: 5}


def filled(given: Sequence[Any], defaults: Sequence[Any]) -> tuple[Any, ...]:
    """Return an op's last arguments with the default values that torch has left out.

    Example:
        >>> filled([7], (None, 0))
        (7, 0)
    """
    return (*given, *defaults[len(given) :])


def as_int64(index: Tensor) -> Tensor:
    """Return an index as a contiguous int64 tensor, without a copy if possible."""
    return index if index.dtype is torch.int64 and index.is_contiguous() else index.long().contiguous()


def check_array(name: str, tensor: Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Check that a tensor, or None, has the shape and the type that a kernel reads.

    Raises:
        ValueError: the shape or the type does not fit.

    Example:
        >>> check_array("grad", torch.ones(2, 3), (2, 4), torch.float32)
        Traceback (most recent call last):
            ...
        ValueError: grad has shape (2, 3) and dtype torch.float32; it must have (2, 4) and torch.float32.
    """
    if tensor is not None and (tensor.shape != tuple(shape) or tensor.dtype is not dtype):
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)} and dtype {tensor.dtype}; it must have {tuple(shape)} and {dtype}."
        )


def check_plan_tensors(
    name: str, index: Tensor, num_rows: int, rowptr: Tensor | None, perm: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return a plan's tensors in the layout of the compiled kernels, which check the values edge by edge.

    Without a row pointer there is no plan.

    Raises:
        ValueError: a shape, a type or a device does not fit.
    """
    if rowptr is None:
        return None, None
    num_edges = index.shape[0]
    for tensor, size in ((rowptr, num_rows + 1), (perm, num_edges)):
        if tensor is None:
            continue
        if tensor.dtype is not torch.int32 or tensor.device != index.device or tensor.shape != (size,):
            raise ValueError(
                f"A tensor of the plan is {tensor.dtype} on {tensor.device} and has shape {tuple(tensor.shape)}; for "
                f"{num_edges} edges into {num_rows} rows it has ({size},) and is torch.int32 next to the data. Use "
                f"ScatterPlan.from_index({name}, {num_rows})."
            )
    return rowptr.contiguous(), None if perm is None else perm.contiguous()

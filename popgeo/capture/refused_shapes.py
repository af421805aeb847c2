"""What is not static in a model: recognised by operation, explained by the model's line and a remedy."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from popgeo.capture.model_lines import frames, owner_of

# What to write instead, by the function that calls an operation, and else by the operation.
with Path(__file__).with_name("remedies.csv").open(newline="") as _file:
    _REMEDIES = {(row["of"], row["name"]): row["remedy"] for row in csv.DictReader(_file)}


@dataclass(frozen=True)
class Problem:
    """One place where a shape, or the path of the program, depends on data.

    Attributes:
        operation: Torch's name of it.
        source: `file:line in function: code` of the model's line.
        module: Dotted name of the submodule that it happened in.
        remedy: What to write instead.
    """

    operation: str
    source: str
    module: str
    remedy: str

    def __str__(self) -> str:
        place = f" (in submodule {self.module})" if self.module else ""
        what = f"{self.operation} depends on the data, and a compiled step needs it fixed"
        return f"{self.source or 'the function itself'}{place}: {what}. Remedy: {self.remedy}."


class DynamicShapeError(ValueError):
    """A shape or a decision of the model depends on the data in the batch."""


def refuse(problem: Problem) -> None:
    """Raises a DynamicShapeError that tells of a problem."""
    raise DynamicShapeError(str(problem))


def remedy(operation: str, callers: Sequence[str], source: str = "") -> str:
    """Return what to write instead of an operation, by the functions that called it, innermost first, and its line.

    Of functions that call each other, the remedy is that of the last, which is the one that the model calls; a number
    of nodes that a function of loops would read is passed to that function.

    Example:
        >>> remedy("nonzero", ["forward"])
        'keep the mask and use torch.where(mask, x, other), so that the shape stays'
    """
    for name in reversed(callers):
        if ("caller", name) in _REMEDIES and not (name.endswith("self_loops") and operation == "_local_scalar_dense"):
            return _REMEDIES["caller", name]
    if operation == "_local_scalar_dense" and "print(" in source:
        return "print a tensor at each run with popgeo.ipu.print_tensor(x)"
    return _REMEDIES.get(("operation", operation), "compute with a fixed number of elements and a mask")


def is_dynamic(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the shape of an operation's result, or a Python value it returns, depends on the data."""
    name = func._schema.name.removeprefix("aten::")
    if name in ("index", "index_put_", "index_put", "_index_put_impl_"):
        masks = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        return masks and (name == "index" or args[2].dim() > 0)
    if name == "repeat_interleave":
        return isinstance(args[0], Tensor) and kwargs.get("output_size") is None
    if name == "_local_scalar_dense":
        # A number that the program itself made (torch.tensor(0.5).item()), or found outside, is known while capturing.
        return isinstance(args[0], FakeTensor) and args[0].constant is None
    return torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags


def callers(frame: FrameType | None) -> list[str]:
    """The names of the functions on the stack, innermost first, torch's own left out, up to the first of the user's."""
    codes = takewhile(lambda code: owner_of(code) != "user", (one.f_code for one in frames(frame)))
    return [getattr(code, "co_qualname", code.co_name) for code in codes if owner_of(code) != "torch"]

"""Places in a model that are not static: recognized by operation, explained by the model's line and a remedy."""

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

# Advice by the function that calls an operation, or by the operation.
with Path(__file__).with_name("remedies.csv").open(newline="") as _file:
    _ROWS = [*csv.DictReader(_file)]
_REMEDIES = {(row["of"], name): row["remedy"] for row in _ROWS for name in row["names"].split()}


@dataclass(frozen=True)
class Problem:
    """One place where a shape, or the path of the program, depends on data.

    Attributes:
        operation: Name of the operation in torch.
        source: Line of the model, as `file:line in function: code`.
        module: Dotted name of the submodule.
        remedy: What to write instead.
    """

    operation: str
    source: str
    module: str
    remedy: str

    def __str__(self) -> str:
        place = f" (in submodule {self.module})" if self.module else ""
        problem = f"{self.operation} depends on the data, and a compiled step needs it fixed"
        return f"{self.source or 'the function itself'}{place}: {problem}. Remedy: {self.remedy}."


class DynamicShapeError(ValueError):
    """An error about a shape or a decision of the model that depends on the data in the batch."""


def refuse(problem: Problem) -> None:
    """Raise a DynamicShapeError with the text of a problem."""
    raise DynamicShapeError(str(problem))


def remedy(operation: str, callers: Sequence[str], source: str = "") -> str:
    """Return the advice for an operation.

    The outermost known caller decides, because the model calls that one. In functions of self loops, a number of nodes
    that is read from data has its own advice.

    Args:
        operation: Name of the operation.
        callers: Functions of libraries that called it, innermost first.
        source: Line of the model. Default: unknown.

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
    """Check whether the shape of an operation's result, or a Python value that it returns, depends on the data."""
    name = func._schema.name.removeprefix("aten::")
    if name in ("index", "index_put_", "index_put", "_index_put_impl_"):
        masks = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        return masks and (name == "index" or args[2].dim() > 0)
    if name == "repeat_interleave":
        return isinstance(args[0], Tensor) and kwargs.get("output_size") is None
    if name == "_local_scalar_dense":
        # A number that the program made (torch.tensor(0.5).item()), or a number from outside, is known in a capture.
        return isinstance(args[0], FakeTensor) and args[0].constant is None
    return torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags


def callers(frame: FrameType | None) -> list[str]:
    """Return the functions on the stack below the user's code, innermost first, without torch's own."""
    codes = takewhile(lambda code: owner_of(code.co_filename) != "user", (one.f_code for one in frames(frame)))
    return [getattr(code, "co_qualname", code.co_name) for code in codes if owner_of(code.co_filename) != "torch"]

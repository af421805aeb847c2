"""Numbers in the state of an optimizer, such as step counts, followed while an update is captured."""

import operator
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from popgeo.capture.refused_shapes import is_dynamic
from popgeo.capture.schemas import target, written_by
from popgeo.engine.optimizer.formula import Formula, Tracked

# Results of operations on scalar tensors of each type, for operands of this type.
ROUNDED: Mapping[torch.dtype, Callable[[Any], Any]] = {
    torch.float32: lambda number: c_float(number).value,
    torch.float64: float,
    torch.int64: int,
}
_ARITHMETIC = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}
_FILLS = ("full", "fill", "copy")


class StateNumbers(TorchFunctionMode):
    """Mode that gives Python the tracked number of a scalar tensor instead of its content.

    Numbers that torch would copy to a new tensor, which a graph would hold as a constant, become arguments of
    operations that fill.

    Args:
        formula: Formula that records. None: tensors give their content.
    """

    def __init__(self, formula: Formula | None) -> None:
        super().__init__()
        self._formula = formula
        self._known: dict[int, Any] = {}  # by memory

    def put(self, part: Any, number: Any) -> Any:
        """Return a piece of state with this number; a tensor contains the random float of a tracked number."""
        if isinstance(part, Tensor) and self._formula is not None:
            self._known[part.untyped_storage()._cdata] = number
        return part.fill_(number) if isinstance(part, Tensor) else number

    def number(self, part: Any) -> Any:
        """Return the present number of a piece of state. Return None if it is no number or an unknown one."""
        if isinstance(part, Tensor):
            return self._known.get(part.untyped_storage()._cdata)
        return part if is_number(part) else None

    def check(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raise a ValueError if Python would read data of a tensor and could choose the path or numbers by it."""
        if self._formula is not None and (
            func._schema.name == "aten::_local_scalar_dense" or is_dynamic(func, args, kwargs)
        ):
            raise ValueError(f"The optimizer reads data of a tensor: {func}.")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and args and is_number(args[0]):
            real = args[0].real_value if isinstance(args[0], Tracked) else args[0]
            dtype = keywords.get("dtype") or (torch.int64 if isinstance(real, int) else torch.get_default_dtype())
            return torch.full((), args[0], **{**keywords, "dtype": dtype})
        if func is Tensor.__setitem__ and is_number(args[2]) and _is_mask(args[1], of=args[0]):
            return args[0].masked_fill_(args[1], args[2])
        number = self.number(args[0]) if func in (Tensor.item, Tensor.__float__) else None
        if number is None:
            return func(*args, **keywords)
        return number if func is Tensor.item else float(number)

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Follow the numbers of scalar tensors through one operation."""
        if self._formula is not None:
            number = self._result(self._formula, target(func).split(".")[1].removesuffix("_"), args, kwargs, result)
            for tensor in written_by(func, args, kwargs):
                self._known.pop(tensor.untyped_storage()._cdata, None)
            if number is not None:
                self._known[result.untyped_storage()._cdata] = number

    def _result(self, formula: Formula, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Return the number that an operation on scalar tensors and numbers gives. None: unknown."""
        rounded = ROUNDED.get(result.dtype) if isinstance(result, Tensor) else None
        if rounded is None or result.untyped_storage().nbytes() != result.itemsize:
            return None
        given = args[1:2] if name in _FILLS else args
        types = {one.dtype for one in given if isinstance(one, Tensor)}
        is_plain = name in _ARITHMETIC and len(given) == 2 and not kwargs and types == {result.dtype}
        numbers = [self.number(one) if isinstance(one, Tensor) else formula.found(one) for one in given]
        if not (is_plain or name in _FILLS) or any(number is None for number in numbers):
            return None
        operands = [formula.record(rounded, number) for number in numbers]
        return formula.record(rounded, formula.record(_ARITHMETIC[name], *operands)) if is_plain else operands[0]


def _is_mask(index: Any, of: Tensor) -> bool:
    return isinstance(index, Tensor) and index.dtype is torch.bool and index.shape == of.shape


def is_number(part: Any) -> bool:
    """Check whether a piece of state or a setting is a number of Python.

    Example:
        >>> is_number(0.5), is_number(True)
        (True, False)
    """
    return isinstance(part, int | float) and type(part) is not bool

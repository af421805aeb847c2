"""Numbers in the state of an optimizer, such as step counts, followed while an update is captured."""

import operator
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from popgeo.capture.op_graph import append_parts
from popgeo.capture.refused_shapes import Problem
from popgeo.capture.schemas import target, written_by
from popgeo.engine.optimizer.formula import Formula, Tracked

# Results of operations on scalar tensors of each type, for operands of this type.
ROUNDED: Mapping[torch.dtype, Callable[[Any], Any]] = {
    torch.float32: lambda number: c_float(number).value,
    torch.float64: float,
    torch.int64: int,
}
_ARITHMETIC = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}


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

    def put(self, tensor: Tensor, number: Any) -> Tensor:
        """Return a scalar tensor with a number, which the tensor then represents. Its content follows `Tracked`."""
        if self._formula is not None:
            self._known[tensor.untyped_storage()._cdata] = number
        return tensor.fill_(number)

    @property
    def is_tracking(self) -> bool:
        """Whether numbers are tracked."""
        return self._formula is not None

    def number(self, part: Any) -> Any:
        """Return the present number of a piece of state. Return None if it is no number or an unknown one."""
        if not isinstance(part, Tensor):
            return part if is_number(part) else None
        return None if part.dim() else self._known.get(part.untyped_storage()._cdata)

    def refuse(self, problem: Problem) -> None:
        """Raise, since Python reads data of a tensor and decides the path or the numbers by it."""
        if self._formula is not None:
            raise ValueError(str(problem))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and args and is_number(args[0]):
            real = args[0].real_value if isinstance(args[0], Tracked) else args[0]
            dtype = keywords.get("dtype") or (torch.int64 if isinstance(real, int) else torch.get_default_dtype())
            return torch.full((), args[0], **{**keywords, "dtype": dtype})
        if func is Tensor.__setitem__ and is_number(args[2]) and _is_mask(args[1], of=args[0]):
            return args[0].masked_fill_(args[1], args[2])
        number = self.number(args[0]) if func is Tensor.item else None
        return func(*args, **keywords) if number is None else number

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Follow the numbers of scalar tensors through one operation."""
        if self._formula is None:
            return
        changed, number = written_by(func, args, kwargs), self._result(func, args, kwargs, result)
        append_parts(Tensor, () if func.is_view else (result,), changed)
        for tensor in changed:
            self._known.pop(tensor.untyped_storage()._cdata, None)
        if number is not None:
            self._known[result.untyped_storage()._cdata] = number

    def _result(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Return the number that an operation on scalar tensors and numbers gives. None: unknown."""
        assert self._formula is not None
        is_alone = isinstance(result, Tensor) and not result.dim() and result.untyped_storage().nbytes() == result.itemsize
        if not is_alone or result.dtype not in ROUNDED:
            return None
        name, rounded = target(func).split(".")[1].removesuffix("_"), ROUNDED[result.dtype]
        if name in ("full", "copy", "fill"):
            (operand,) = self._numbers(args[1:2])
            return None if operand is None else self._formula.record(rounded, operand)
        is_plain = len(args) == 2 and not kwargs and all(one.dtype is result.dtype for one in args if isinstance(one, Tensor))
        operands = self._numbers(args) if name in _ARITHMETIC and is_plain else [None]
        if any(operand is None for operand in operands):
            return None
        operands = [self._formula.record(rounded, operand) for operand in operands]
        return self._formula.record(rounded, self._formula.record(_ARITHMETIC[name], *operands))

    def _numbers(self, operands: Sequence[Any]) -> list[Any]:
        assert self._formula is not None
        return [self.number(one) if isinstance(one, Tensor) else self._formula.found(one) for one in operands]


def _is_mask(index: Any, of: Tensor) -> bool:
    return isinstance(index, Tensor) and index.dtype is torch.bool and index.shape == of.shape


def is_number(part: Any) -> bool:
    """Check whether a piece of state or a setting is a number of Python.

    Example:
        >>> is_number(0.5), is_number(True)
        (True, False)
    """
    return isinstance(part, int | float) and type(part) is not bool

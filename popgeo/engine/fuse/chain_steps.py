"""Translates element-wise operations into steps of a chain."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from popgeo.capture.op_graph import Number, Op, Value
from popgeo.capture.operations import OPERATIONS, ChainStep

F32, BOOL = torch.float32, torch.bool
# The result of a step, which later steps can take as an operand.
Handle = Any
# A function that appends a step: its code, then handles, arguments of the operation (values, numbers) or plain numbers.
Writer = Callable[..., Handle]
# A function that appends the steps of an operation: a writer, then the operation's arguments. None if it cannot.
Write = Callable[..., Handle]


def fits(op: Op, values: tuple[Value, ...]) -> bool:
    """Return whether a chain can compute the operation, with the same types as torch."""
    if op.target not in WRITERS or len(op.makes()) != 1 or not all(map(_is_in_range, (*op.args, *op.kwargs.values()))):
        return False
    if any(values[v].marks[1] for v in (*op.reads(), *op.makes())):  # a view that shows negatives of its memory
        return False
    result = values[op.makes()[0]].dtype
    kinds = {values[v].dtype for v in op.reads()}
    if op.target in ("aten._to_copy.default", "aten.copy_.default"):
        return result == F32 and kinds <= {F32, BOOL, torch.int64, torch.int32}
    if op.target in _MASKS:  # operands are floats, or booleans for logic
        return result == BOOL and (kinds == {F32} or (kinds == {BOOL} and op.target in _LOGIC))
    return result == F32 and kinds <= {F32, BOOL}


def _is_in_range(argument: Any) -> bool:
    """Return whether a number is in the range of float32; other arguments are fine."""
    if isinstance(argument, Number):
        argument = argument.value
    if type(argument) not in (int, float):
        return True
    return not math.isfinite(argument) or abs(argument) <= torch.finfo(F32).max


def _simple(code: str) -> Write:
    return lambda write, *operands, **other: None if other else write(code, *operands)


def _add(write: Writer, x: Any, y: Any, alpha: Any = 1) -> Handle:
    return write("add", x, y) if _is_one(alpha) else write("fma", x, y, alpha)


def _sub(write: Writer, x: Any, y: Any, alpha: Any = 1) -> Handle:
    return write("sub", x, y) if _is_one(alpha) else write("fnma", x, y, alpha)


def _is_one(number: Any) -> bool:
    return type(number) in (int, float) and number == 1


def _addcmul(write: Writer, x: Any, first: Any, second: Any, value: Any = 1) -> Handle:
    return write("fma", x, first if _is_one(value) else write("mul", first, value), second)


def _addcdiv(write: Writer, x: Any, first: Any, second: Any, value: Any = 1) -> Handle:
    return write("add", x, write("div", first if _is_one(value) else write("mul", first, value), second))


def _pow(write: Writer, x: Any, exponent: Any) -> Handle:
    powers: dict[float, Callable[[], Handle]] = {
        1: lambda: write("copy", x),
        2: lambda: write("mul", x, x),
        3: lambda: write("mul", write("mul", x, x), x),
        0.5: lambda: write("sqrt", x),
        -0.5: lambda: write("rsqrt", x),
        -1: lambda: write("reciprocal", x),
        -2: lambda: write("reciprocal", write("mul", x, x)),
    }
    return powers[exponent]() if exponent in powers else None


def _clamp(write: Writer, x: Any, low: Any = None, high: Any = None, **named: Any) -> Handle:
    low, high = named.get("min", low), named.get("max", high)
    bounded = x if low is None else write("max", x, low)
    return bounded if high is None else write("min", bounded, high)


def _softplus(write: Writer, x: Any, beta: Any = 1, threshold: Any = 20) -> Handle:
    scaled = x if _is_one(beta) else write("mul", x, beta)
    soft = write("log1p", write("exp", scaled))
    return write("where", write("gt", scaled, threshold), x, soft if _is_one(beta) else write("div", soft, beta))


def _softplus_backward(write: Writer, grad: Any, x: Any, beta: Any, threshold: Any) -> Handle:
    scaled = x if _is_one(beta) else write("mul", x, beta)
    z = write("exp", scaled)
    slope = write("div", write("mul", grad, z), write("add", z, 1.0))
    return write("where", write("gt", scaled, threshold), grad, slope)


def _leaky(write: Writer, x: Any, above: Any, slope: Any) -> Handle:
    return write("where", write("gt", x, 0.0), above, write("mul", above, slope))


def _copied(write: Writer, x: Any, **layout: Any) -> Handle:
    return write("copy", x)


def _filled(number: float) -> Write:
    return lambda write, like, *_, **layout: write("fill", number)


# Codes with the same name in torch.
_UNARY = [row.short_name for row in OPERATIONS.values() if row.chain is ChainStep.UNARY]
_COMPARED = [row.short_name for row in OPERATIONS.values() if row.chain is ChainStep.COMPARISON]
_BITWISE = {"bitwise_not.default": "not", "bitwise_and.Tensor": "and", "bitwise_or.Tensor": "or"}
_LOGIC = {f"aten.{name}": _simple(code) for name, code in _BITWISE.items()}
_LOGIC |= {f"aten.logical_{code}.default": _simple(code) for code in _BITWISE.values()}
_MASKS = {f"aten.{name}.{kind}": _simple(name) for name in _COMPARED for kind in ("Scalar", "Tensor")} | _LOGIC
WRITERS: Mapping[str, Write] = {
    **{f"aten.{name}{place}.default": _simple(name) for name in _UNARY for place in ("", "_")},
    **_MASKS,
    **{f"aten.{name}.{kind}": write for kind in ("Tensor", "Scalar") for name, write in (
        ("add", _add), ("add_", _add), ("sub", _sub), ("sub_", _sub),
        ("rsub", lambda write, x, y, alpha=1: _sub(write, y, x, alpha)),
        ("mul", _simple("mul")), ("mul_", _simple("mul")), ("div", _simple("div")), ("div_", _simple("div")),
    )},
    "aten.square.default": lambda write, x: write("mul", x, x),
    "aten.sgn.default": _simple("sign"),
    "aten.pow.Tensor_Scalar": _pow,
    "aten.maximum.default": _simple("max"), "aten.minimum.default": _simple("min"),
    "aten.maximum.out": lambda write, x, y, out: write("max", x, y),
    "aten.clamp.default": _clamp, "aten.clamp_.default": _clamp,
    "aten.clamp_min.default": _clamp, "aten.clamp_max.default": lambda write, x, high: write("min", x, high),
    **{f"aten.{name}.default": lambda write, x: write("max", x, 0.0) for name in ("relu", "relu_")},
    "aten.threshold_backward.default": lambda write, grad, x, least: write("where", write("le", x, least), 0.0, grad),
    "aten.leaky_relu.default": lambda write, x, slope=0.01: _leaky(write, x, x, slope),
    "aten.leaky_relu_backward.default": lambda write, grad, x, slope, is_result: _leaky(write, x, grad, slope),
    "aten.softplus.default": _softplus, "aten.softplus_backward.default": _softplus_backward,
    **{f"aten.{name}.default": _simple(name) for name in ("silu_backward", "sigmoid_backward", "tanh_backward")},
    **{f"popgeo.{name}.default": _simple(name) for name in ("shifted_softplus", "shifted_softplus_backward")},
    **{f"aten.where.{kind}": _simple("where") for kind in ("self", "ScalarOther", "ScalarSelf")},
    **{f"aten.masked_fill.{kind}": lambda write, x, mask, number: write("where", mask, number, x)
       for kind in ("Scalar", "Tensor")},
    "aten.addcmul.default": _addcmul, "aten.addcmul_.default": _addcmul,
    "aten.addcdiv.default": _addcdiv, "aten.addcdiv_.default": _addcdiv,
    "aten.lerp.Scalar": _simple("lerp"), "aten.lerp_.Scalar": _simple("lerp"), "aten.lerp.Tensor": _simple("lerp"),
    "aten.clone.default": _copied, "aten._to_copy.default": _copied,
    "aten.copy_.default": lambda write, x, source, non_blocking=False: write("copy", source),
    "popgeo.identity_loss.default": _copied,
    "aten.zeros_like.default": _filled(0.0), "aten.ones_like.default": _filled(1.0),
    "aten.full_like.default": lambda write, like, number, **layout: write("fill", number),
}  # fmt: skip

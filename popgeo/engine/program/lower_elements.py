"""Lowers operations by element whose results are exact or rounded once, so that every kernel has the same bits."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Number
from popgeo.engine.program.native_call import NativeCall
from popgeo.engine.program.strided import TYPES, Area, Element, constant, elements_call, lowers, require

# In the order of the tables in native/csrc/elements.cpp.
CODES = (
    "copy", "neg", "abs", "sign", "square", "cube", "rsqrt", "reciprocal", "not", "add", "sub", "mul", "div",
    "max", "min", "and", "or", "xor", "at_least", "at_most", "clamp", "add_times", "threshold", "threshold_backward",
    "where", "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
_OF_BOOLS = {"add": "or", "mul": "and", "max": "or", "min": "and"}  # operations of truth values
_FOR_BOOLS = {"copy", "not", "and", "or", "xor", "where", "eq", "ne", "lt", "le", "gt", "ge"}
_OF_FLOATS = {"rsqrt", "reciprocal", "div"}  # integers are first made floats
_FOR_INTEGERS = {"not", "and", "or", "xor", "add_times"}
_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
# For each code the arguments in the kernel's order, torch's overloads, and torch's names of the operation. There is no
# root, because torch takes it from a library that does not round correctly.
_FORMS = (
    *((name, "self", "default", name) for name in ("neg", "abs", "sign", "rsqrt", "reciprocal", "square")),
    ("not", "self", "default", "bitwise_not logical_not"), ("ne", "self self", "default", "isnan"),
    ("max", "self other", "default", "maximum"), ("min", "self other", "default", "minimum"),
    *((name, "self other", "default", f"logical_{name}") for name in ("and", "or", "xor")),
    *((name, "self other", "Tensor Scalar", f"bitwise_{name}") for name in ("and", "or", "xor")),
    *((name, "self other", "Tensor Scalar", name) for name in ("add", "sub", "mul", *sorted(_COMPARISONS))),
    ("sub", "other self", "Tensor Scalar", "rsub"),
    ("div", "self other", "Tensor Scalar Tensor_mode Scalar_mode", "div"),
    ("where", "condition self other", "self ScalarSelf ScalarOther Scalar", "where"),
    ("where", "mask value self", "Tensor Scalar", "masked_fill"),
    ("threshold", "self threshold value", "default", "threshold"),
    ("threshold_backward", "self threshold grad_output", "default", "threshold_backward"),
    ("clamp", "self min max", "default", "clamp"), ("at_least", "self min", "default", "clamp_min"),
    ("at_most", "self max", "default", "clamp_max"), ("at_least", "self", "default", "relu"),
)  # fmt: skip


def computed(code: str, dtype: torch.dtype, out: Tensor, operands: Sequence[Any]) -> NativeCall:
    """Return the call of one operation that computes in this type; operands are tensors or numbers."""
    if dtype is torch.bool:
        code = _OF_BOOLS.get(code, code)
        require(code in _FOR_BOOLS)
    require(dtype in TYPES and (not dtype.is_floating_point or code not in _FOR_INTEGERS))
    held = [one if isinstance(one, Tensor) else constant(one) for one in operands]
    pairs = zip(operands, held, strict=True)
    slots = [(memory.view(1).numpy(), 0, one.slot) for one, memory in pairs if isinstance(one, Number)]
    areas = [Area.of(one) for one in held]
    element = Element(code=CODES.index(code), kind=TYPES[dtype], out=Area.of(out), operands=areas)
    return elements_call([element], slots, held)


def _common_type(operands: Sequence[Any], code: str) -> torch.dtype:
    plain = [one.value if isinstance(one, Number) else one for one in operands]
    dtype = torch.result_type(plain[0], plain[-1])
    return torch.get_default_dtype() if code in _OF_FLOATS and not dtype.is_floating_point else dtype


def _lower(name: str, code: str, arguments: str, results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    operands = [given[one] for one in arguments.split()]
    dtype = results[0].dtype
    require(given.get("rounding_mode") is None)
    if name.startswith("logical"):
        dtype = torch.bool
    elif code == "where":
        require(operands[0].dtype is torch.bool)
        require(dtype is (_common_type(operands[1:], code) if name == "where" else given["self"].dtype))
    elif code.startswith("threshold"):
        require(dtype.is_floating_point and all(one.dtype is dtype for one in operands if isinstance(one, Tensor)))
    elif code in ("clamp", "at_least", "at_most"):
        code, operands = _with_bounds(code, operands)
    else:
        dtype = _common_type(operands, code)
        code, operands = _with_factor(code, operands, given.get("alpha", 1), dtype)
        # An operation in place converts its result to the type of its operand.
        require(name.endswith("_") or results[0].dtype is (torch.bool if code in _COMPARISONS else dtype))
    return computed(code, dtype, results[0], operands)


def _with_bounds(code: str, operands: list[Any]) -> tuple[str, list[Any]]:
    """Return code and operands of an operation with one or two bounds; without any, `relu` has the bound 0."""
    operands = operands if len(operands) > 1 else [*operands, 0]
    if code == "clamp" and None in operands:
        code = "at_most" if operands[1] is None else "at_least"
        operands = [one for one in operands if one is not None]
    require(all(type(one) in (int, float) and not math.isnan(one) for one in operands[1:]))
    return code, operands


def _with_factor(code: str, operands: list[Any], alpha: Any, dtype: torch.dtype) -> tuple[str, list[Any]]:
    """Return code and operands of a sum whose last operand has a factor, which floats may not have."""
    if alpha == 1 and not isinstance(alpha, Number):
        return code, operands
    require(type(alpha) is int and dtype is not torch.bool and (alpha == -1 or not dtype.is_floating_point))
    if alpha == -1:
        return ("sub" if code == "add" else "add"), operands
    return "add_times", [*operands, alpha if code == "add" else -alpha]


for _code, _arguments, _overloads, _names in _FORMS:
    for _name in (name + mark for name in _names.split() for mark in ("", "_")):
        _targets = (f"aten.{_name}.{one}" for one in _overloads.split())
        lowers(*_targets)(functools.partial(_lower, _name, _code, _arguments))

_POWERS = {1: "copy", 2: "square", 3: "cube", -0.5: "rsqrt", -1: "reciprocal"}


@lowers("aten.pow.Tensor_Scalar", "aten.pow_.Scalar")
def lower_power(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
    """Lower the powers that torch computes by products and roots."""
    base, exponent = given["self"], given["exponent"]
    require(type(exponent) in (int, float) and results[0].dtype is base.dtype)
    require(base.dtype.is_floating_point or (type(exponent) is int and exponent in (0, 1, 2, 3)))
    if exponent == 0:
        return computed("copy", base.dtype, results[0], [1])
    require(exponent in _POWERS)
    return computed(_POWERS[exponent], base.dtype, results[0], [base])

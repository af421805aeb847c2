"""Which operations of torch work by element, and what their workers do."""

import torch

from popgeo.ipu.codelets.calibration import Machine
from popgeo.ipu.codelets.compose import in_sequence
from popgeo.ipu.codelets.elementwise import plan_elementwise
from popgeo.ipu.codelets.operands import Rule, distinct, made, read, tensor, width
from popgeo.ipu.op_graph import Op, OpGraph, Value
from popgeo.ipu.plan import Plan

# Poplar has no softplus that is safe for large numbers; programs for it write max(x, 0) + log1p(exp(-|x|)), and each of
# these runs on its own, forward and backward.
_SOFTPLUS = ("relu", "relu", "exp", "log1p", "maximum", "add")
_SOFTPLUS_BACKWARD = ("scalar", "divide", "add", "relu", "relu", "add", "select", "add", "add")
# Per operation the passes over its elements.
_PASSES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("add", "sub", "rsub", "mul", "_foreach_add", "_foreach_mul", "_foreach_sub"), ("add",)),
    **dict.fromkeys(("neg", "relu", "abs", "square", "sign", "sgn", "positive"), ("relu",)),
    **dict.fromkeys(("ceil", "floor", "round", "trunc", "frac"), ("relu",)),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin", "clamp", "clamp_min", "clamp_max"), ("maximum",)),
    **dict.fromkeys(("hardtanh", "relu6", "leaky_relu", "threshold", "threshold_backward"), ("maximum",)),
    **dict.fromkeys(("leaky_relu_backward", "hardtanh_backward", "l1_loss", "l1_loss_backward"), ("maximum",)),
    **dict.fromkeys(("div", "true_divide", "floor_divide", "_foreach_div"), ("divide",)),
    **dict.fromkeys(("remainder", "fmod"), ("divide", "add product")),
    **dict.fromkeys(("addcmul", "_foreach_addcmul", "mse_loss_backward", "tanh_backward"), ("add product",)),
    **dict.fromkeys(("addcdiv", "_foreach_addcdiv"), ("add quotient",)),
    **dict.fromkeys(("lerp", "_foreach_lerp"), ("mix",)),
    **dict.fromkeys(("exp", "exp2", "expm1"), ("exp",)),
    **dict.fromkeys(("log", "log2", "log10", "tanh", "sigmoid", "logit"), ("log",)),
    "log1p": ("log1p",),
    **dict.fromkeys(("sqrt", "_foreach_sqrt"), ("sqrt",)),
    "rsqrt": ("rsqrt",),
    "reciprocal": ("inverse",),
    **dict.fromkeys(("erf", "erfc", "gelu", "gelu_backward"), ("erf",)),
    **dict.fromkeys(("softplus", "log_sigmoid_forward"), _SOFTPLUS),
    "popgeo.shifted_softplus": (*_SOFTPLUS, "scalar"),
    **dict.fromkeys(("softplus_backward", "log_sigmoid_backward"), _SOFTPLUS_BACKWARD),
    "popgeo.shifted_softplus_backward": _SOFTPLUS_BACKWARD,
    "mish": (*_SOFTPLUS, "log", "add"),
    **dict.fromkeys(("silu", "silu_backward", "sigmoid_backward"), ("sigmoid product",)),
    **dict.fromkeys(("elu", "elu_backward", "celu", "selu"), ("exp", "maximum")),
    **dict.fromkeys(("cos", "sin", "tan", "acos", "asin", "atan", "atan2", "sinh", "cosh", "sinc"), ("cosine",)),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "where", "masked_fill", "isnan", "isinf"), ("select",)),
    **dict.fromkeys(("isfinite", "signbit", "nan_to_num", "copysign", "heaviside"), ("select",)),
    **dict.fromkeys(("logical_and", "logical_or", "logical_not", "logical_xor"), ("select",)),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor"), ("select",)),
    **dict.fromkeys(("bernoulli", "uniform", "normal", "rand", "randn", "rand_like", "randn_like"), ("random",)),
    **dict.fromkeys(("randint", "random", "exponential", "normal_functional", "randint_like"), ("random",)),
    "native_dropout": ("random", "add", "add"),
    "native_dropout_backward": ("add product",),
}  # fmt: skip
# Operations on numbers of 32 bits have no vectors.
_ARITHMETIC = ("add", "scalar", "maximum", "divide", "add product", "relu", "mix")


def _pointwise(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    result = _result(graph, op)
    sources = [value for value in read(graph, op) if value.dtype.is_floating_point] or read(graph, op) or [result]
    return _passes(_PASSES[_name(op)], result, sources[0], _smaller(graph, op, result), op, machine)


def _pow(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """The exponents that poplar knows run as what they are."""
    result, exponent = _result(graph, op), op.args[1]
    known = {2: "relu", 0.5: "sqrt", -0.5: "rsqrt", -1: "inverse", 1: "cast"}
    kind = known.get(exponent, "add product" if exponent == 3 else "power") if _is_number(exponent) else "power"
    return _passes((kind,), result, tensor(graph, op.args[0]), 0, op, machine)


def _cast(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    result, source = _result(graph, op), tensor(graph, op.args[0])
    return plan_elementwise("cast", result.numel, max(width(result), width(source)), machine)


def _passes(kinds: tuple[str, ...], result: Value, source: Value, smaller: int, op: Op, machine: Machine) -> Plan:
    nbytes = width(source)
    if not source.dtype.is_floating_point:
        kinds = tuple("integer" if kind in _ARITHMETIC else kind for kind in kinds)
        nbytes = 4 if source.dtype is not torch.bool else 1
    elif kinds == ("add",) and any(map(_is_number, op.args[:2])):
        kinds = ("scalar",)
    plans = [
        plan_elementwise(kind, max(1, result.numel), nbytes, machine, smaller if n == 0 else 0)
        for n, kind in enumerate(kinds)
    ]
    return plans[0] if len(plans) == 1 else in_sequence("elementwise", plans)


def _result(graph: OpGraph, op: Op) -> Value:
    """What it makes or changes in place; of several, the largest."""
    values = made(graph, op) + [graph.values[v] for v in op.writes] or read(graph, op)
    return max(values, key=lambda value: value.numel)


def _smaller(graph: OpGraph, op: Op, result: Value) -> int:
    """Elements of the largest operand that must be spread out, one that is broadcast."""
    return max((distinct(value) for value in read(graph, op) if distinct(value) < result.numel), default=0)


def _is_number(argument: object) -> bool:
    return isinstance(argument, int | float) or hasattr(argument, "slot")


def _name(op: Op) -> str:
    return op.target.rpartition(".")[0].removeprefix("aten.").rstrip("_")


RULES: dict[str, Rule] = {
    **{name if "." in name else f"aten.{name}": _pointwise for name in _PASSES},
    "aten.pow": _pow,
    "aten._to_copy": _cast,
    "aten.to": _cast,
    "prims.convert_element_type": _cast,
}

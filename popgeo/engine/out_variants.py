"""For each operation the function of torch that runs it fastest: into given memory where torch can."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from popgeo.capture.op_graph import Op, OpGraph, overload
from popgeo.engine.fuse.prepared import prepared_op

# torch's own bindings take their arguments faster than the generic call of an operation does; same kernels.
_BINDINGS = [
    "mm",
    "addmm",
    "bmm",
    "mul",
    "add",
    "sub",
    "div",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "cos",
    "sin",
    "neg",
    "abs",
    "sgn",
    "sign",
    "tanh",
    "sigmoid",
    "where",
    "pow",
    "sum",
    "amax",
    "amin",
    "index_select",
    "index_add",
    "scatter_add",
    "gather",
    "cat",
    "log1p",
    "expm1",
    "square",
    "reciprocal",
    "maximum",
    "minimum",
    "clamp",
    "ge",
    "gt",
    "le",
    "lt",
    "eq",
    "ne",
    "bitwise_and",
    "bitwise_not",
    "logical_and",
    "logical_not",
]
_FAST = {name: getattr(torch, name) for name in _BINDINGS}
_SCALAR_AS_TENSOR = {"aten.mul.Scalar", "aten.div.Scalar", "aten.add.Scalar", "aten.sub.Scalar"}
_COPIES = {"aten.clone.default", "aten._to_copy.default", "popgeo.identity_loss.default"}
_FILLS = {
    "aten.zeros.default": 0, "aten.zeros_like.default": 0, "aten.new_zeros.default": 0,
    "aten.ones.default": 1, "aten.ones_like.default": 1, "aten.new_ones.default": 1,
}  # fmt: skip
_EMPTY = {
    "aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default", "aten.empty_strided.default",
    "aten.new_empty_strided.default",
}  # fmt: skip
# Where these reduce to a mean or a sum, they resize what they are given to hold the losses of all elements first. Torch
# warns of it, and the last leaves the sum in memory of its own.
_RESIZES = {f"aten::{name}.out" for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")}
# Written as one kernel although torch does not list it for the CPU.
_ALSO_INTO = {"aten::cat.out"}


def has_fixed_place(graph: OpGraph, op: Op) -> bool:
    """Whether the operation writes its results into memory that it is given."""
    if prepared_op(op.target) is not None:
        return True
    if op.writes or graph.is_view(op):
        return False
    fresh = op.target in _COPIES or op.target in _FILLS or op.target in _EMPTY
    return fresh or into(op.target) is not None


def is_elementwise(op: Op) -> bool:
    """Whether each element of the result depends on that element of the operands, so that it may overwrite one."""
    prepared = prepared_op(op.target)
    if prepared is not None:
        return prepared.by_element
    if into(op.target) is None:
        return False
    return op.target in _SCALAR_AS_TENSOR or _is_pointwise(op.target)


@functools.cache
def _is_pointwise(target: str) -> bool:
    return torch.Tag.pointwise in overload(target).tags  # type: ignore[attr-defined]


@functools.cache
def plain(target: str) -> Callable[..., Any]:
    """The function that returns new tensors."""
    return overload(target)._op  # type: ignore[attr-defined]


@functools.cache
def returns_list(target: str) -> bool:
    """Whether an operation returns a list of tensors, also where there is only one.

    Example:
        >>> returns_list("aten.unbind.int"), returns_list("aten.relu.default")
        (True, False)
    """
    returns = overload(target)._schema.returns  # type: ignore[attr-defined]
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)


@functools.cache
def into(target: str) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """The function that writes into given tensors, and the names of those arguments; None where torch has none."""
    namespace, name, _ = target.split(".")
    if namespace != "aten":
        return None
    if target in _SCALAR_AS_TENSOR:
        return _FAST[name], ("out",)
    functional = overload(target)._schema  # type: ignore[attr-defined]
    packet = getattr(torch.ops.aten, name)
    for other in packet.overloads():
        schema = getattr(packet, other)._schema
        outs = [arg for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]
        if not outs or not all(arg.kwarg_only for arg in outs) or len(outs) != len(functional.returns):
            continue
        if _arguments(schema, outs) != _arguments(functional, []) or not _is_real(f"aten::{name}.{other}"):
            continue
        names = tuple(arg.name for arg in outs)
        fast = _FAST.get(name) if names == ("out",) else None
        return fast or getattr(packet, other)._op, names
    return None


def copy_or_fill(op: Op) -> tuple[str, Any] | None:
    """`copy_`, or `fill_` and the number, or `nothing`, for operations that are no more than that."""
    if op.target in _COPIES:
        return "copy_", None
    if op.target in _FILLS:
        return "fill_", _FILLS[op.target]
    return ("nothing", None) if op.target in _EMPTY else None


def _arguments(schema: Any, without: list[Any]) -> list[tuple[str, str]]:
    left_out = {arg.name for arg in without}
    return [(arg.name, str(arg.type)) for arg in schema.arguments if arg.name not in left_out]


def _is_real(name: str) -> bool:
    """Whether it has a kernel of its own; the others compute as usual and copy the result."""
    if name in _RESIZES:
        return False
    return name in _ALSO_INTO or torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")

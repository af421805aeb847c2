"""For each operation the function of torch that runs it fastest: into given memory where torch can."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from popgeo.capture.op_graph import Op, OpGraph, overload
from popgeo.capture.operations import Out, operation_of
from popgeo.engine.fuse.chain import CHAIN
from popgeo.engine.fuse.def_use import is_contiguous
from popgeo.engine.fuse.prepared import PREPARED

# What torch's functions take, though the schemas of the forms with `out` do not.
_SCALAR_AS_TENSOR = {"aten.mul.Scalar", "aten.div.Scalar", "aten.add.Scalar", "aten.sub.Scalar"}
# Written as one kernel although torch does not list it for the CPU.
_ALSO_INTO = {"aten::cat.out"}
_NOT_CALLED = {Out.COPY: "{}.copy_({})", Out.ZEROS: "{}.fill_(0)", Out.ONES: "{}.fill_(1)", Out.NOTHING: ""}


def has_fixed_place(graph: OpGraph, op: Op) -> bool:
    """Whether the operation writes its results into memory that it is given."""
    if op.target in PREPARED:
        return True
    if op.writes or graph.is_view(op):
        return False
    return copy_or_fill(op) is not None or into_place(graph, op) is not None


def is_elementwise(op: Op) -> bool:
    """Whether each element of the result depends on that element of the operands, so that it may overwrite one."""
    if op.target in PREPARED:
        return op.target == CHAIN  # which reads a block of elements before it writes there
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
    """Whether an operation returns a list of tensors, also if there is only one.

    Example:
        >>> returns_list("aten.unbind.int"), returns_list("aten.relu.default")
        (True, False)
    """
    returns = overload(target)._schema.returns  # type: ignore[attr-defined]
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)


@functools.cache
def into(target: str) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """The function that writes into given tensors, and the names of those arguments; else None."""
    namespace, name, _ = target.split(".")
    if namespace != "aten":
        return None
    out = operation_of(target).out
    if out is Out.RESIZES:
        return None
    if target in _SCALAR_AS_TENSOR:
        return _bound(name), ("out",)
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
        is_bound = out is Out.BINDING and names == ("out",)
        return _bound(name) if is_bound else getattr(packet, other)._op, names
    return None


def into_place(graph: OpGraph, op: Op) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """As `into`, but None if the kernel may write row after row and a result does not lie so in memory.

    Some of torch's kernels, such as softmax and pooling, ignore the strides of the memory that they are given.
    """
    found = into(op.target)
    by_rows = found is not None and op.target not in _SCALAR_AS_TENSOR and not _is_pointwise(op.target)
    return None if by_rows and not all(is_contiguous(graph.values[v]) for v in op.makes()) else found


def copy_or_fill(op: Op) -> str | None:
    """The line for an operation that is no more than a copy or a fill: braces for the result, and for the operand.

    Empty if there is nothing to do; None for other operations.
    """
    return _NOT_CALLED.get(operation_of(op.target).out)


def _bound(name: str) -> Callable[..., Any]:
    """Torch's own function, whatever others have put in `torch` under its name."""
    return getattr(torch._C._VariableFunctions, name)


def _arguments(schema: Any, without: list[Any]) -> list[tuple[str, str]]:
    left_out = {arg.name for arg in without}
    return [(arg.name, str(arg.type)) for arg in schema.arguments if arg.name not in left_out]


def _is_real(name: str) -> bool:
    """Whether it has a kernel of its own; the others compute as usual and copy the result."""
    return name in _ALSO_INTO or torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")

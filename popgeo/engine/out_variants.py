"""Finds for each operation the function of torch that runs it fastest, into given memory if torch can."""

import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph, overload
from popgeo.capture.operations import Out, operation_of
from popgeo.engine.fuse.chain import CHAIN
from popgeo.engine.fuse.def_use import is_contiguous

# Torch's functions take a number here, though the schemas of their `out` overloads do not.
_SCALAR_AS_TENSOR = {"aten.mul.Scalar", "aten.div.Scalar", "aten.add.Scalar", "aten.sub.Scalar"}
# One kernel writes it into given memory, although torch does not list that kernel for the CPU.
_ALSO_INTO = {"aten::cat.out"}
_FILLED = {Out.ZEROS: 0, Out.ONES: 1}


def is_elementwise(op: Op) -> bool:
    """Return whether each result element depends only on its operands' elements, so that it may overwrite one."""
    if op.target == CHAIN:
        return True  # a chain reads a block of elements before it writes the block
    if into(op.target) is None:
        return False
    return op.target in _SCALAR_AS_TENSOR or _is_pointwise(op.target)


@functools.cache
def _is_pointwise(target: str) -> bool:
    return torch.Tag.pointwise in overload(target).tags  # type: ignore[attr-defined]


@functools.cache
def plain(target: str) -> Callable[..., Any]:
    """Return torch's function for an operation that returns new tensors."""
    return overload(target)._op  # type: ignore[attr-defined]


@functools.cache
def returns_list(target: str) -> bool:
    """Return whether an operation returns a list of tensors, even of one tensor.

    Example:
        >>> returns_list("aten.unbind.int"), returns_list("aten.relu.default")
        (True, False)
    """
    returns = overload(target)._schema.returns  # type: ignore[attr-defined]
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)


@functools.cache
def into_overload(target: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the overload that writes into given tensors, and the names of its output arguments; None without one."""
    namespace, name, _ = target.split(".")
    if namespace != "aten" or operation_of(target).out is Out.RESIZES:
        return None
    functional = overload(target)._schema  # type: ignore[attr-defined]
    packet = getattr(torch.ops.aten, name)
    for other in packet.overloads():
        schema = getattr(packet, other)._schema
        outs = [arg for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]
        if not outs or not all(arg.kwarg_only for arg in outs) or len(outs) != len(functional.returns):
            continue
        if _arguments(schema, outs) == _arguments(functional, []) and _is_real(f"aten::{name}.{other}"):
            return other, tuple(arg.name for arg in outs)
    return None


@functools.cache
def into(target: str) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """Return the function that writes into given tensors, and the names of its output arguments; None without one."""
    _, name, _ = target.split(".")
    own: Any = getattr(torch._C._VariableFunctions, name, None)  # other code may have replaced the name in `torch`
    if target in _SCALAR_AS_TENSOR:
        return own, ("out",)
    found = into_overload(target)
    if found is None:
        return None
    other, names = found
    is_bound = operation_of(target).out is Out.BINDING and names == ("out",)
    return own if is_bound else getattr(getattr(torch.ops.aten, name), other)._op, names


def into_place(graph: OpGraph, op: Op) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """Return `into`, or None if the kernel may ignore the strides of the given memory and a result is not contiguous.

    Softmax, pooling and some other kernels of torch write contiguous rows for any strides.
    """
    found = into(op.target)
    by_rows = found is not None and op.target not in _SCALAR_AS_TENSOR and not _is_pointwise(op.target)
    return None if by_rows and not all(is_contiguous(graph.values[v]) for v in op.makes()) else found


def allocates(graph: OpGraph, op: Op) -> bool:
    """Return whether torch can write the results of an operation only to new memory."""
    is_simple = operation_of(op.target).out in (Out.COPY, Out.ZEROS, Out.ONES, Out.NOTHING)
    return not is_simple and into_place(graph, op) is None


def copy_or_fill(op: Op, tensors: Mapping[int, Tensor]) -> Callable[[], object] | None:
    """Return the call of an operation that copies its operand or fills its result with a number; None for others."""
    out = operation_of(op.target).out
    if out in _FILLED:
        return partial(tensors[op.makes()[0]].fill_, _FILLED[out])
    return partial(tensors[op.makes()[0]].copy_, tensors[op.reads()[0]]) if out is Out.COPY else None


def _arguments(schema: Any, without: list[Any]) -> list[tuple[str, str]]:
    left_out = {arg.name for arg in without}
    return [(arg.name, str(arg.type)) for arg in schema.arguments if arg.name not in left_out]


def _is_real(name: str) -> bool:
    """Return whether the CPU has a kernel that writes into given memory; without it, torch computes and then copies."""
    return name in _ALSO_INTO or torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")

"""Properties of an operation from torch's schema: its name, its kind of results, and the arguments that it changes."""

import functools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, overload

# Operations in place that change no element: they turn the tensor into a view of itself.
_VIEWS = "squeeze.default squeeze.dim squeeze.dims unsqueeze.default t.default as_strided.default detach.default"
VIEWS_IN_PLACE = {f"aten.{name.replace('.', '_.')}": f"aten.{name}" for name in _VIEWS.split()}
VIEWS_IN_PLACE["aten.transpose_.default"] = "aten.transpose.int"

# Zeros that torch keeps without memory, such as the gradient of `sgn`. A graph's values need memory, and views of
# stand-ins for such zeros would get another device.
IN_MEMORY = {torch.ops.aten._efficientzerotensor.default: torch.ops.aten.zeros.default}

# Operations that change running statistics, which their schema hides: positions of the arguments, and of the flag.
_HIDDEN_WRITES = {"aten.native_batch_norm.default": ((3, 4), 5), "aten.cudnn_batch_norm.default": ((3, 4), 5)}


@functools.cache
def target(func: Any) -> str:
    """Return the name of an operation in an `OpGraph`."""
    namespace, name = func._schema.name.split("::")
    return f"{namespace}.{name}.{func._overloadname}"


@functools.cache
def makes_tensors(func: Any) -> bool:
    """Check whether an operation returns or changes tensors, instead of reading a number."""
    return func._schema.is_mutable or any("Tensor" in str(item.type) for item in func._schema.returns)


@functools.cache
def is_composite(func: Any) -> bool:
    """Check whether torch runs other operations in the place of this one.

    Example:
        >>> is_composite(torch.ops.aten.dropout.default), is_composite(torch.ops.aten.native_dropout.default)
        (True, False)
    """
    name, has_kernel = func.name(), torch._C._dispatch_has_kernel_for_dispatch_key
    if not torch._C._dispatch_has_kernel(name):
        return False
    return has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CPU")  # kernels round differently


@functools.cache
def chooses_results(func: Any) -> bool:
    """Check whether an operation makes only the results that its last argument wants.

    Example:
        >>> chooses_results(torch.ops.aten.convolution_backward.default), chooses_results(torch.ops.aten.relu.default)
        (True, False)
    """
    return [one.name for one in func._schema.arguments[-1:]] == ["output_mask"]


def only_raises(func: Any) -> bool:
    """Check whether an operation reads tensors and makes nothing, so that its only effect is an error.

    Example:
        >>> only_raises(torch.ops.aten._assert_async.msg), only_raises(torch.ops.aten.relu.default)
        (True, False)
    """
    schema = func._schema
    looks = any(str(argument.type) == "Tensor" for argument in schema.arguments) and "metadata" not in schema.name
    return (looks and not schema.returns and not schema.is_mutable) or "_functional_assert" in schema.name


@functools.cache
def _written(func: Any) -> list[tuple[int, str]]:
    """Return the position and the name of each argument that an operation changes in place."""
    given = enumerate(func._schema.arguments)
    return [(i, one.name) for i, one in given if one.alias_info is not None and one.alias_info.is_write]


def written_by(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that a call of an operation changes in place."""
    written: list[Tensor] = []
    for position, name in _written(func):
        given = args[position] if position < len(args) else kwargs.get(name)
        written += [t for t in (given if isinstance(given, list | tuple) else [given]) if isinstance(t, Tensor)]
    positions, flag = _HIDDEN_WRITES.get(target(func), ((), 0))
    if positions and args[flag]:
        written += [args[p] for p in positions if isinstance(args[p], Tensor)]
    return written


def position_of(op: Op, name: str) -> int | None:
    """Return the position of the argument with this name; None if the operation has no such argument.

    Example:
        >>> position_of(Op(target="aten.softmax.int", args=(), outputs=()), "dim")
        1
    """
    arguments = overload(op.target)._schema.arguments  # type: ignore[attr-defined]
    return next((position for position, argument in enumerate(arguments) if argument.name == name), None)


def argument_of(op: Op, name: str) -> Any:
    """Return an argument by its name in the operation's schema, or its default."""
    given = vars(named_arguments(overload(op.target), op.args, op.kwargs))
    assert name in given, f"{op.target} has no argument {name}"
    return given[name]


def named_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SimpleNamespace:
    """Return the arguments of a call by their names in the operation's schema, with defaults."""
    given = {one.name: one.default_value for one in func._schema.arguments}
    return SimpleNamespace(**{**given, **dict(zip(given, args, strict=False)), **kwargs})

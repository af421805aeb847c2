"""Graphs of one operation, with a tensor for each value, for tests of native calls."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value
from popgeo.engine.program.native_call import LOWERINGS, NativeCall
from popgeo.native import library


def one_operation(
    target: str, arguments: Sequence[Any], results: Sequence[Tensor | None], role: Role = Role.ARGUMENT
) -> tuple[OpGraph, Op, Mapping[int, Tensor]]:
    """Return a graph of an operation, the operation, and the tensor of each value.

    Args:
        target: Name of the operation.
        arguments: Its arguments; each tensor is an input of the graph.
        results: The tensors to write to; None for a missing result.
        role: The role of the graph's inputs.
    """
    given = [one for one in arguments if isinstance(one, Tensor)]
    tensors = [*given, *(one for one in results if one is not None)]
    numbers, made = iter(range(len(given))), iter(range(len(given), len(tensors)))
    args = tuple(Ref(next(numbers)) if isinstance(one, Tensor) else one for one in arguments)
    outputs = tuple(None if one is None else next(made) for one in results)
    values = []
    for v, one in enumerate(tensors):
        form = {"shape": tuple(one.shape), "stride": one.stride(), "offset": 0, "dtype": one.dtype}
        values.append(Value(**form, storage=v, producer=0 if v >= len(given) else None))
    op = Op(target=target, args=args, outputs=outputs)
    inputs = {Input(role, str(v)): v for v in range(len(given))}
    return OpGraph(ops=(op,), values=tuple(values), inputs=inputs, outputs=outputs), op, dict(enumerate(tensors))


def lower(
    target: str, arguments: Sequence[Any], results: Sequence[Tensor | None], role: Role = Role.ARGUMENT
) -> NativeCall | None:
    """Return the native call of an operation; `one_operation` explains the arguments."""
    graph, op, tensors = one_operation(target, arguments, results, role)
    return LOWERINGS[target](graph, op, tensors)


def run(call: NativeCall) -> int:
    """Run a native call with torch's number of threads, and return its status."""
    if call.num_threads is not None:
        call.words[call.num_threads] = torch.get_num_threads()
    native = library.packed(call.function)
    assert native is not None
    return native(call.words.tobytes())


def places_like(results: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return tensors for results, with bytes of 0x7F, so that an element without a new value shows."""
    return [
        None if one is None else torch.full((one.nbytes,), 0x7F, dtype=torch.uint8).view(one.dtype).view(one.shape)
        for one in results
    ]


def bytes_of(tensors: Sequence[Tensor | None]) -> list[bytes | None]:
    """Return the bytes of tensors."""
    return [None if one is None else one.reshape(-1).view(torch.uint8).numpy().tobytes() for one in tensors]

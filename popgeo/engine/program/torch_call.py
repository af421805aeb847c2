"""Calls of torch for the operations of a graph that is bound to memory, with their results in fixed places."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from popgeo.capture.op_graph import Number, Op, OpGraph, Ref, append_parts
from popgeo.engine import out_variants

Call = Callable[[], object]
# A function that makes the call of an operation that is not torch's, such as a loop.
MakeCall = Callable[[OpGraph, Op, Mapping[int, Tensor]], Call]

OWN_CALLS: dict[str, MakeCall] = {}
"""For the name of each operation that is neither torch's nor has a kernel, the function that makes its call."""


def torch_call(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor], numbers: Mapping[int, float]) -> Call:
    """Return a call that runs an operation and leaves its results in their places.

    Args:
        graph: The graph of the operation.
        op: The operation.
        tensors: The tensor of each value.
        numbers: The present values of `Number` arguments, by slot. Default: their values in the graph.
    """
    if op.target in OWN_CALLS:
        return OWN_CALLS[op.target](graph, op, tensors)
    made = op.makes()
    if not op.writes and (simple := out_variants.copy_or_fill(op, tensors)) is not None:
        return simple
    into = None if op.writes or None in op.outputs else out_variants.into_place(graph, op)
    function, outs = into or (out_variants.plain(op.target), ())
    named = {**op.kwargs, **dict(zip(outs, map(Ref, made), strict=False))}
    changing: list[Number] = []
    append_parts(Number, (*op.args, *named.values()), changing)
    if changing:

        def call() -> Any:
            args, kwargs = (_filled(given, tensors, numbers) for given in (op.args, named))
            return function(*args, **kwargs)

    else:
        args, kwargs = (_filled(given, tensors, numbers) for given in (op.args, named))
        call = partial(function, *args, **kwargs)
    return call if into is not None else _copying(op, call, tensors)


def _copying(op: Op, call: Callable[[], Any], tensors: Mapping[int, Tensor]) -> Call:
    """Return a call that copies the results of another one to their places."""
    known = {None, *op.reads()}  # an operation also returns the operands that it changes in place
    places = [(number, tensors[v]) for number, v in enumerate(op.outputs) if v is not None and v not in known]
    if not places:
        return call
    if len(op.outputs) == 1 and not out_variants.returns_list(op.target):
        ((_, place),) = places
        return lambda: place.copy_(call())

    def copy() -> None:
        results = call()
        for number, place in places:
            if results[number] is not None:  # some kernels leave out a result that the capture expected
                place.copy_(results[number])

    return copy


def _filled(argument: Any, tensors: Mapping[int, Tensor], numbers: Mapping[int, float]) -> Any:
    """Return an argument with tensors in place of values, and with the present numbers."""
    if isinstance(argument, Ref):
        return tensors[argument.value]
    if isinstance(argument, Number):
        return numbers.get(argument.slot, argument.value)
    if isinstance(argument, list | tuple):
        return [_filled(item, tensors, numbers) for item in argument]
    if isinstance(argument, dict):
        return {key: _filled(item, tensors, numbers) for key, item in argument.items()}
    return argument

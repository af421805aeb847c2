"""Graphs that run through native calls alone, for tests that compare them with torch bit by bit."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import Op, OpGraph
from popgeo.engine.memory_plan import byte_offset, storage_spans, view_of
from popgeo.engine.program import lower_copies, lower_elements, lower_rows, lower_sums  # noqa: F401  they register
from popgeo.engine.program.native_call import LOWERINGS, NativeCall
from popgeo.native import library


def graph_of(function: Callable[..., Any], *inputs: Tensor) -> OpGraph:
    """Return the graph of a function of these tensors."""
    return capture(function, bind(function, *inputs)).graph


def placed(graph: OpGraph, *inputs: Tensor) -> dict[int, Tensor]:
    """Return a tensor in memory of its own for each value of a graph."""
    tensors = dict(zip(graph.inputs.values(), inputs, strict=True)) | dict(graph.constants)
    places = {graph.values[v].storage: (tensor, byte_offset(graph.values[v])) for v, tensor in tensors.items()}
    for storage, size in storage_spans(graph.values).items():
        places.setdefault(storage, (torch.full((size,), 90, dtype=torch.uint8), 0))
    return {v: tensors.get(v, view_of(*places[x.storage], x)) for v, x in enumerate(graph.values)}


def lowered(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall | None:
    """Return the native call of an operation; None if torch runs it."""
    lower = LOWERINGS.get(op.target)
    return None if lower is None else lower(graph, op, tensors)


def run(call: NativeCall) -> int:
    """Run a native call and return its status."""
    function = library.packed(call.function)
    assert function is not None
    return function(call.words.tobytes())


def calls_of(function: Callable[..., Any], *inputs: Tensor) -> list[NativeCall | None]:
    """Return the native call of each operation of a function, except of views."""
    graph = graph_of(function, *inputs)
    tensors = placed(graph, *inputs)
    return [lowered(graph, op, tensors) for op in graph.ops if not graph.is_view(op)]


def has_torchs_bits(function: Callable[..., Tensor], *inputs: Tensor) -> bool:
    """Check that native calls compute a function of tensors, and give the bits that torch gives."""
    mine, theirs = map(_copy, inputs), map(_copy, inputs)
    graph = graph_of(function, *inputs)
    tensors = placed(graph, *mine)
    for op in graph.ops:
        if not graph.is_view(op):
            call = lowered(graph, op, tensors)
            assert call is not None, f"{op.target} has no native call"
            assert run(call) == 0
    (result,) = graph.outputs
    assert result is not None
    return same_bits(tensors[result], function(*theirs))


def _copy(x: Tensor) -> Tensor:
    """Return a tensor with the same layout in other memory."""
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage().clone(), x.storage_offset(), x.shape, x.stride())


def same_bits(mine: Tensor, theirs: Tensor) -> bool:
    """Check that two tensors have the same type, shape and bits; all NaNs count as one."""
    if mine.dtype is not theirs.dtype or mine.shape != theirs.shape:
        return False
    if not mine.dtype.is_floating_point:
        return torch.equal(mine, theirs)
    bits = torch.int32 if mine.itemsize == 4 else torch.int64
    same = mine.contiguous().view(bits) == theirs.contiguous().view(bits)
    return bool((same | (mine.isnan() & theirs.isnan())).all())

"""A check of captured graphs that runs in every test: each graph can run in the order in which it is written."""

from collections.abc import Sequence
from typing import NoReturn

from popgeo.capture.op_graph import Input, Op, OpGraph, Value


def check_graph(graph: OpGraph) -> None:
    """Check that a graph, and the bodies of its loops and branches, can run as written.

    Each value has one shape and one producer, which runs before all operations that read the value. An operation
    changes only values that it reads. A view stays within the memory of the value that it views.

    Raises:
        ValueError: the graph breaks one of these rules; the message names the operation and the value.
    """
    values = graph.values
    known = set[int]()  # the values that exist so far
    ends = dict[int, int]()  # bytes of the memory that inputs, constants and results own, by storage
    for v, value in enumerate(values):
        if len(value.shape) != len(value.stride) or min((*value.shape, *value.stride, value.offset, 0)) < 0:
            _refuse("the graph", v, f"has shape {value.shape}, stride {value.stride}, offset {value.offset}")
    given: list[tuple[Input | str, int]] = [*graph.inputs.items(), *(("a constant", v) for v in graph.constants)]
    for place, v in given:
        if v in known or not 0 <= v < len(values):
            _refuse(place, v, "is not a value, or given twice")
        if values[v].producer is not None:
            _refuse(place, v, "is also made by an operation")
        ends[values[v].storage] = max(values[v].end, ends.get(values[v].storage, 0))
        known.add(v)
    for v, tensor in graph.constants.items():
        if (tuple(tensor.shape), tensor.dtype) != (values[v].shape, values[v].dtype):
            _refuse("a constant", v, f"is given a tensor of {tensor.dtype} {list(tensor.shape)}")
    for index, op in enumerate(graph.ops):
        _check_op(values, index, op, known, ends)
    for result in {*graph.outputs} - known - {None}:
        _refuse("the results", result, "is made by nothing")
    for v in {v for v, value in enumerate(values) if value.producer is not None} - known:
        _refuse("the graph", v, f"is not made by operation {values[v].producer}")


def _check_op(values: Sequence[Value], index: int, op: Op, known: set[int], ends: dict[int, int]) -> None:
    """Check one operation against the values known when it runs, and add its results to them."""
    place, reads = f"operation {index} ({op.target})", {*op.reads()}
    for body in op.bodies:
        check_graph(body)
    for v in reads - known:
        _refuse(place, v, "is read before it is made")
    for v in {*op.writes} - reads:
        _refuse(place, v, "is changed without being read")
    seen, fresh = {values[v].storage for v in reads}, set[int]()
    for v in op.makes():
        if v in reads:  # an operation may return a value that it changes
            continue
        if v in known or not 0 <= v < len(values):
            _refuse(place, v, "is not a value, or made twice")
        value = values[v]
        if value.producer != index:
            _refuse(place, v, f"names operation {value.producer} as its producer")
        known.add(v)
        if value.storage not in seen:
            if value.storage in ends and value.storage not in fresh:
                _refuse(place, v, "lies in memory that is not read")
            fresh.add(value.storage)
            ends[value.storage] = max(value.end, ends.get(value.storage, 0))
        elif value.end > ends[value.storage]:
            _refuse(place, v, f"goes beyond the {ends[value.storage]} bytes there")


def _refuse(place: Input | str, v: int | None, problem: str) -> NoReturn:
    raise ValueError(f"The graph cannot run: in {place}, %{v} {problem}.")

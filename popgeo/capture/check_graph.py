"""Makes sure that a graph can run as it stands."""

from typing import NoReturn

from popgeo.capture.op_graph import Input, Op, OpGraph


def check_graph(graph: OpGraph) -> None:
    """Makes sure that a graph, and the bodies of its loops and branches, can run as they stand.

    Each value has one shape and one maker, which runs before all that read it; an operation changes only what it
    takes; and what looks at the memory of another value stays within it.

    Raises:
        ValueError: it breaks one of these rules; the message names the operation and the value.
    """
    _Checker(graph).check()


class _Checker:
    """Goes through a graph in the order in which it runs.

    Attributes:
        known: The values that are there so far.
        ends: Bytes of the memory that inputs, constants and results own, by storage.
    """

    def __init__(self, graph: OpGraph) -> None:
        self.graph, self.values = graph, graph.values
        self.known: set[int] = set()
        self.ends: dict[int, int] = {}

    def check(self) -> None:
        graph, values = self.graph, self.values
        for v, value in enumerate(values):
            if len(value.shape) != len(value.stride) or min((*value.shape, *value.stride, value.offset, 0)) < 0:
                _refuse("the graph", v, f"has shape {value.shape}, stride {value.stride}, offset {value.offset}")
        for given, v in graph.inputs.items():
            self._take_given(given, v)
        for v, tensor in graph.constants.items():
            self._take_given("a constant", v)
            if (tuple(tensor.shape), tensor.dtype) != (values[v].shape, values[v].dtype):
                _refuse("a constant", v, f"is given a tensor of {tensor.dtype} {list(tensor.shape)}")
        for index, op in enumerate(graph.ops):
            self._take_op(f"operation {index} ({op.target})", index, op)
        for result in {*graph.outputs} - self.known - {None}:
            _refuse("the results", result, "is made by nothing")
        for v in {v for v, value in enumerate(values) if value.producer is not None} - self.known:
            _refuse("the graph", v, f"is not made by operation {values[v].producer}")

    def _take_given(self, who: Input | str, v: int) -> None:
        """Checks a value that is given, and adds it to what is known."""
        if v in self.known or not 0 <= v < len(self.values):
            _refuse(who, v, "is not a value, or given twice")
        value = self.values[v]
        if value.producer is not None:
            _refuse(who, v, "is also made by an operation")
        self.ends[value.storage] = max(value.end, self.ends.get(value.storage, 0))
        self.known.add(v)

    def _take_op(self, who: str, index: int, op: Op) -> None:
        """Checks one operation, given what is known when it runs, and adds what it makes."""
        reads, values, ends = {*op.reads()}, self.values, self.ends
        for body in op.bodies:
            check_graph(body)
        for v in reads - self.known:
            _refuse(who, v, "is read before it is made")
        for v in {*op.writes} - reads:
            _refuse(who, v, "is changed without being taken")
        seen, fresh = {values[v].storage for v in reads}, set[int]()
        for v in op.makes():
            if v in reads:  # what it changes, it may also return
                continue
            if v in self.known or not 0 <= v < len(values):
                _refuse(who, v, "is not a value, or made twice")
            value = values[v]
            if value.producer != index:
                _refuse(who, v, f"names operation {value.producer} as its producer")
            self.known.add(v)
            if value.storage not in seen:
                if value.storage in ends and value.storage not in fresh:
                    _refuse(who, v, "lies in memory that is not read")
                fresh.add(value.storage)
                ends[value.storage] = max(value.end, ends.get(value.storage, 0))
            elif value.end > ends[value.storage]:
                _refuse(who, v, f"goes beyond the {ends[value.storage]} bytes there")


def _refuse(who: Input | str, v: int | None, broken: str) -> NoReturn:
    raise ValueError(f"The graph cannot run: in {who}, %{v} {broken}.")

"""Makes sure that a graph can run as it stands."""

from popgeo.capture.op_graph import Op, OpGraph


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
        for v, value in enumerate(self.values):
            whole = len(value.shape) == len(value.stride) and min((*value.shape, *value.stride, value.offset, 0)) == 0
            _require(whole, "the graph", v, f"has shape {value.shape}, stride {value.stride}, offset {value.offset}")
        inputs = [(str(given), v) for given, v in self.graph.inputs.items()]
        for who, v in [*inputs, *(("a constant", v) for v in self.graph.constants)]:
            self._take_given(who, v)
        for v, tensor in self.graph.constants.items():
            alike = (tuple(tensor.shape), tensor.dtype) == (self.values[v].shape, self.values[v].dtype)
            _require(alike, "a constant", v, f"is given a tensor of {tensor.dtype} {list(tensor.shape)}")
        for index, op in enumerate(self.graph.ops):
            self._take_op(f"operation {index} ({op.target})", index, op)
        for result in self.graph.outputs:
            _require(result is None or result in self.known, "the results", result, "is made by nothing")
        for v, value in enumerate(self.values):
            is_made = value.producer is None or v in self.known
            _require(is_made, "the graph", v, f"is not made by operation {value.producer}")

    def _take_given(self, who: str, v: int) -> None:
        """Checks a value that is given, and adds it to what is known."""
        self._require_new(who, v, "given")
        value = self.values[v]
        _require(value.producer is None, who, v, "is also made by an operation")
        self.ends[value.storage] = max(value.end, self.ends.get(value.storage, 0))
        self.known.add(v)

    def _take_op(self, who: str, index: int, op: Op) -> None:
        """Checks one operation, given what is known when it runs, and adds what it makes."""
        reads = op.reads()
        for body in op.bodies:
            check_graph(body)
        for v in reads:
            _require(v in self.known, who, v, "is read before it is made")
        for v in op.writes:
            _require(v in reads, who, v, "is changed without being taken")
        seen, fresh = {self.values[v].storage for v in reads}, set[int]()
        for v in (v for v in op.makes() if v not in reads):  # what it changes, it may also return
            self._require_new(who, v, "made")
            value = self.values[v]
            _require(value.producer == index, who, v, f"names operation {value.producer} as its producer")
            self.known.add(v)
            if value.storage in seen:
                end = self.ends[value.storage]
                _require(value.end <= end, who, v, f"goes beyond the {end} bytes there")
                continue
            is_own = value.storage not in self.ends or value.storage in fresh
            _require(is_own, who, v, "lies in memory that is not read")
            fresh.add(value.storage)
            self.ends[value.storage] = max(value.end, self.ends.get(value.storage, 0))

    def _require_new(self, who: str, v: int, how: str) -> None:
        is_new = 0 <= v < len(self.values) and v not in self.known
        _require(is_new, who, v, f"is no value, or {how} twice")


def _require(holds: bool, who: str, v: int | None, broken: str) -> None:
    if not holds:
        raise ValueError(f"The graph cannot run: in {who}, %{v} {broken}.")

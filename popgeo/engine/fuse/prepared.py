"""Operations whose calls are prepared when a graph is bound to memory: one native function, one structure filled once.

A pass of `graph_runner.fuse` puts such operations into the graph, and registers here how each is prepared. In the graph
they are operations like any other: `reads`, `makes` and `writes` say all that they touch.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from popgeo.capture.op_graph import Number, Op, OpGraph, append_parts

# Runs the operation once. It is given what only a run knows, in the order of `late_arguments`.
PreparedCall = Callable[..., Any]
Prepare = Callable[[OpGraph, Op, Mapping[int, Tensor]], PreparedCall | None]

# By name, what makes the call of an operation from the graph, the operation and the values that have a fixed place. All
# results have one; operands may not, and come at each run. It gives None where the operation cannot be prepared after
# all: it is then called as torch knows it, and its results are copied.
PREPARED: dict[str, Prepare] = {}


def late_arguments(op: Op, tensors: Mapping[int, Tensor]) -> tuple[list[int], list[Number]]:
    """What a prepared call is given at each run: operands without a fixed place, each once, then numbers in order."""
    numbers: list[Number] = []
    append_parts(Number, (*op.args, *op.kwargs.values()), numbers)
    return [v for v in dict.fromkeys(op.reads()) if v not in tensors], numbers

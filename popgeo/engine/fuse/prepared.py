"""The table of operations with prepared calls: one native function and one structure, filled when memory is bound.

A pass of `graph_runner.fuse` puts such operations into the graph and registers here how to prepare each of them. In the
graph they are like other operations: `reads`, `makes` and `writes` name all values that they touch.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from popgeo.capture.op_graph import Number, Op, OpGraph, append_parts

# A function that runs the operation once; its arguments are those of `late_arguments`.
PreparedCall = Callable[..., Any]
Prepare = Callable[[OpGraph, Op, Mapping[int, Tensor]], PreparedCall | None]

# For each operation's name, the function that prepares its call. It takes the graph, the operation, and the tensors of
# values with a fixed place. All results have one; operands without one are arguments of each run. The function returns
# None if the operation cannot be prepared; torch's own operation then runs, and its results are copied.
PREPARED: dict[str, Prepare] = {}


def late_arguments(op: Op, tensors: Mapping[int, Tensor]) -> tuple[list[int], list[Number]]:
    """Return the arguments of a prepared call at each run: operands without a fixed place, and changing numbers."""
    numbers: list[Number] = []
    append_parts(Number, (*op.args, *op.kwargs.values()), numbers)
    return [v for v in dict.fromkeys(op.reads()) if v not in tensors], numbers

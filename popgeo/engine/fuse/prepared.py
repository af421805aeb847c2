"""Operations whose calls are prepared when a graph is bound to memory: one native function, one structure filled once.

A pass of `graph_runner.fuse` puts such operations into the graph, and registers here how each is prepared. In the graph
they are operations like any other: `reads`, `makes` and `writes` say all that they touch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from popgeo.capture.op_graph import Number, Op, OpGraph, append_parts

# Runs the operation once. It is given what only a run knows, in the order of `late_arguments`.
PreparedCall = Callable[..., Any]
Prepare = Callable[[OpGraph, Op, Mapping[int, Tensor]], PreparedCall | None]


@dataclass(frozen=True, kw_only=True)
class PreparedOp:
    """How the engine calls an operation that writes its results into memory that it is given.

    Attributes:
        prepare: Makes the call from the graph, the operation and the values that have a fixed place. All results have
            one; operands may not, and come at each run. None where the operation cannot be prepared after all: it is
            then called as torch knows it, and its results are copied.
        by_element: Whether each element of a result depends on that element of the operands of the same layout, and is
            written after they are read, so that a result may take the place of such an operand.
    """

    prepare: Prepare
    by_element: bool = False


_PREPARED: dict[str, PreparedOp] = {}


def register_prepared(target: str, how: PreparedOp) -> None:
    """Makes known how the operations of one name are prepared."""
    _PREPARED[target] = how


def prepared_op(target: str) -> PreparedOp | None:
    """How operations of this name are prepared; None for those that are not."""
    return _PREPARED.get(target)


def late_arguments(op: Op, tensors: Mapping[int, Tensor]) -> tuple[list[int], list[Number]]:
    """What a prepared call is given at each run: operands without a fixed place, each once, then numbers in order."""
    numbers: list[Number] = []
    append_parts(Number, (*op.args, *op.kwargs.values()), numbers)
    return [v for v in dict.fromkeys(op.reads()) if v not in tensors], numbers

"""Def-use chains: the operations that make and read each value of a graph, for passes that search for patterns."""

from collections.abc import Sequence
from typing import Any

import torch

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value
from popgeo.capture.value_list import dense_strides

# Views in another shape; they show all elements if the number of elements is the same.
SHOWS = (
    "aten.view.default", "aten._unsafe_view.default", "aten.unsqueeze.default", "aten.squeeze.dim",
    "aten.expand.default", "aten.select.int", "aten.select_backward.default",
)  # fmt: skip


class DefUse:
    """A graph with its def-use chains.

    Args:
        graph: The graph; operations are numbered in its order.

    Attributes:
        users: The operations that read each value.
        returned: The values that the graph returns.
    """

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.users: dict[int, list[int]] = {}
        for index, op in enumerate(graph.ops):
            for v in dict.fromkeys(op.reads()):
                self.users.setdefault(v, []).append(index)
        self.returned = {v for v in graph.outputs if v is not None}
        self._mutated = graph.mutated_storages()

    def maker(self, v: int | None, *targets: str) -> Op | None:
        """Return the operation that makes a value, if it is one of `targets` and the value never changes in place."""
        index = None if v is None or v < 0 else self.graph.values[v].producer
        op = None if index is None else self.graph.ops[index]
        return op if op is not None and op.target in targets and self.is_stable(v) else None

    def is_stable(self, v: int | None) -> bool:
        """Return whether no operation changes the value's memory in place."""
        return v is not None and v >= 0 and self.graph.values[v].storage not in self._mutated

    def is_plain(self, v: int | None, shape: Sequence[int] | None = None, dtype: torch.dtype = torch.float32) -> bool:
        """Return whether a value has this type and shape, is contiguous, and never changes in place."""
        if v is None or not self.is_stable(v):
            return False
        value = self.graph.values[v]
        fits = value.dtype is dtype and (shape is None or value.shape == tuple(shape))
        return fits and is_contiguous(value)

    def untransposed(self, v: int | None) -> int | None:
        """Return the original matrix if a value is its transpose; None if the value is not a transpose."""
        op = self.maker(v, "aten.t.default", "aten.transpose.int", "aten.permute.default")
        if op is None or v is None:
            return None
        base = ref(op.args[0])
        whole, turned = self.graph.values[base], self.graph.values[v]
        mirrored = whole.shape[::-1], whole.stride[::-1], whole.offset
        is_transposed = len(whole.shape) == 2 and (turned.shape, turned.stride, turned.offset) == mirrored
        return base if is_transposed else None

    def shown(self, v: int) -> int:
        """Follow views that only change the shape; return the value that they show."""
        values = self.graph.values
        while (op := self.maker(v, *SHOWS)) is not None and values[ref(op.args[0])].numel == values[v].numel:
            v = ref(op.args[0])
        return v

    def flat(self, v: int | None) -> int | None:
        """Return the vector that a value shows with added dimensions of size 1; None for any other value."""
        while v is not None and len(self.graph.values[v].shape) != 1:
            op = self.maker(v, "aten.view.default", "aten.unsqueeze.default", "aten._unsafe_view.default")
            if op is None or self.graph.values[v].numel != max((*self.graph.values[v].shape, 1)):
                return None
            v = ref(op.args[0])
        return v


def ref(argument: Any) -> int:
    """Return the number of the value in an argument; -1 if the argument is not a value."""
    return argument.value if isinstance(argument, Ref) else -1


def is_contiguous(value: Value) -> bool:
    """Return whether a value's elements are contiguous in memory."""
    steps = zip(value.shape, value.stride, dense_strides(value.shape), strict=True)
    return all(size == 1 or own == dense for size, own, dense in steps)

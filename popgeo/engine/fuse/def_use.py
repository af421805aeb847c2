"""Who makes and who reads each value of a graph, for passes that look for patterns."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value

# Another shape of the same elements, if they leave the number of these as it is.
SHOWS = (
    "aten.view.default", "aten._unsafe_view.default", "aten.unsqueeze.default", "aten.squeeze.dim",
    "aten.expand.default", "aten.select.int", "aten.select_backward.default",
)  # fmt: skip


class DefUse:
    """A graph with its def-use chains.

    Args:
        graph: Its operations are numbered as they stand.
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
        """The operation that makes a value, if it is one of these and nothing changes its memory in place."""
        index = None if v is None or v < 0 else self.graph.values[v].producer
        op = None if index is None else self.graph.ops[index]
        return op if op is not None and op.target in targets and self.is_stable(v) else None

    def is_stable(self, v: int | None) -> bool:
        """Whether nothing changes the value in place."""
        return v is not None and v >= 0 and self.graph.values[v].storage not in self._mutated

    def is_plain(self, v: int | None, shape: Sequence[int] | None = None, dtype: torch.dtype = torch.float32) -> bool:
        """Whether a value is of this type and shape, row after row in memory, and nothing changes it in place."""
        if v is None or not self.is_stable(v):
            return False
        value = self.graph.values[v]
        fits = value.dtype is dtype and (shape is None or value.shape == tuple(shape))
        return fits and is_contiguous(value)

    def untransposed(self, v: int | None) -> int | None:
        """What a value is the transposed of."""
        op = self.maker(v, "aten.t.default", "aten.transpose.int", "aten.permute.default")
        if op is None or v is None:
            return None
        base = ref(op.args[0])
        whole, turned = self.graph.values[base], self.graph.values[v]
        mirrored = whole.shape[::-1], whole.stride[::-1], whole.offset
        is_transposed = len(whole.shape) == 2 and (turned.shape, turned.stride, turned.offset) == mirrored
        return base if is_transposed else None

    def shown(self, v: int) -> int:
        """The value whose elements this shows in another shape, all of them and in the same order."""
        values = self.graph.values
        while (op := self.maker(v, *SHOWS)) is not None and values[ref(op.args[0])].numel == values[v].numel:
            v = ref(op.args[0])
        return v

    def flat(self, v: int | None) -> int | None:
        """The value of one dimension that this is a view of, with dimensions of size 1 added."""
        while v is not None and len(self.graph.values[v].shape) != 1:
            op = self.maker(v, "aten.view.default", "aten.unsqueeze.default", "aten._unsafe_view.default")
            if op is None or self.graph.values[v].numel != max((*self.graph.values[v].shape, 1)):
                return None
            v = ref(op.args[0])
        return v


def ref(argument: Any) -> int:
    """The value that an argument is; -1 if the argument is not a value."""
    return argument.value if isinstance(argument, Ref) else -1


def is_contiguous(value: Value) -> bool:
    """Whether a value's elements lie row after row, with nothing between them."""
    steps = [math.prod(value.shape[axis + 1 :]) for axis in range(len(value.shape))]
    return all(size == 1 or own == step for size, own, step in zip(value.shape, value.stride, steps, strict=True))

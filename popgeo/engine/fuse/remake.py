"""Makes what edges have of rows of a table again for each use, if that costs less than memory for all edges."""

import dataclasses
import itertools
import re
from collections.abc import Set

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.capture.operations import operation_of
from popgeo.capture.passes import drop_unused, replace_values, with_ops
from popgeo.engine.fuse.chain_steps import fits, writer_of

# Steps that are run again at most, and those that cost as much as several.
_MOST_STEPS = 8
_SLOW = frozenset(re.split(" ", "exp expm1 log log1p tanh sin cos softplus sigmoid silu silu_backward div"))
_SMALL = 8  # an operand with that many times fewer elements may be kept for it


class RowsAtUses:
    """A graph in which each element-wise use of rows that edges take, and of what is made of them, is to have its own.

    Args:
        graph: In which sums into new zeros make a value of their own.
        taken: The values that are rows of a table, one for each edge.
        joined: The values that edges are joined to, row by row.
    """

    def __init__(self, graph: OpGraph, taken: Set[int], joined: Set[int]) -> None:
        self._graph, self._taken, self._joined = graph, taken, joined
        self._values, self._ops = list(graph.values), list[Op]()
        self._storages = itertools.count(max((value.storage for value in graph.values), default=0) + 1)
        self._mutated = graph.mutated_storages()
        self._maker: dict[int, Op] = {}
        self._steps: dict[int, int] = {}  # to make a value again

    def graph(self) -> OpGraph:
        """The graph if they have."""
        for op in self._graph.ops:
            computes = writer_of(op) is not None and fits(op, self._graph.values)
            joins = not self._joined.isdisjoint(op.makes()) or op.target.startswith("aten.sum.")
            own: dict[int, int] = {}
            if computes or joins:
                for v in op.reads():
                    self._remake(v, own)
            self._ops.append(replace_values(op, own))
            if len(op.outputs) == 1 and (steps := self._steps_of(op, computes)) is not None:
                self._steps[op.makes()[0]], self._maker[op.makes()[0]] = steps, op
        return drop_unused(with_ops(self._graph, self._ops, self._graph.outputs, values=self._values))

    def _steps_of(self, op: Op, computes: bool) -> int | None:
        """How many steps it takes to make the result again; None if that costs too much or may not be."""
        (made,), values = op.makes(), self._graph.values
        if made in self._taken:
            return 0
        if op.writes or values[made].storage in self._mutated or not (computes or self._graph.is_view(op)):
            return None
        again = [v for v in op.reads() if v in self._steps]
        kept = [values[v] for v in op.reads() if v not in self._steps]
        small = all(v.numel * _SMALL <= values[made].numel and v.storage not in self._mutated for v in kept)
        own = 4 if operation_of(op.target).short_name in _SLOW else int(computes)
        steps = own + sum(self._steps[v] for v in again)
        return steps if again and small and steps <= _MOST_STEPS else None

    def _remake(self, v: int, own: dict[int, int]) -> None:
        """Adds what makes a value again, as `own` then says; nothing if it is not to be made again."""
        if v in own or v not in self._steps:
            return
        op, value = self._maker[v], self._values[v]
        for operand in op.reads():
            self._remake(operand, own)
        base = op.reads()[0]
        storage = self._values[own[base]].storage if self._graph.is_view(op) else next(self._storages)
        self._values.append(dataclasses.replace(value, storage=storage))
        own[v] = len(self._values) - 1
        self._ops.append(dataclasses.replace(replace_values(op, own), outputs=(own[v],)))

"""Recomputation: the passes of a stage that repeats its forward pass."""

from collections.abc import Sequence
from dataclasses import replace

from popgeo.capture.op_graph import Op, OpGraph, Value
from popgeo.capture.passes import renumbered, with_ops
from popgeo.capture.value_list import ValueList
from popgeo.engine.pipeline.replay import kept_results
from popgeo.engine.pipeline.staging import Recompute
from popgeo.ipu.options import Options
from popgeo.ipu.systems.stage_cut import require_layers

_SHAPES_ALONE = ("full_like", "zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty")


def recompute_of(graph: OpGraph, options: Options) -> Recompute | None:
    """Return the recomputation of the options; None without recomputation.

    Raises:
        ValueError: a name is not a layer of the forward pass.
    """
    recompute = options.recompute
    if not recompute:
        return None
    layers = () if isinstance(recompute, bool) else tuple(recompute)
    require_layers(graph, layers, "Options.recompute")
    return Recompute(layers=layers, last_stage=options.recompute_last_stage)


def content_reads(op: Op) -> tuple[int, ...]:
    """Return the values that an operation reads, except values that only give a shape."""
    return () if op.target.split(".")[1] in _SHAPES_ALONE else op.reads()


def with_recomputation(
    stage: OpGraph, recompute: Recompute, *, is_last: bool = False
) -> tuple[OpGraph, Sequence[int], Sequence[int]]:
    """Return the passes of a stage that drops forward results and computes them again later.

    The stage keeps the results of the named layers. An operation runs again right before the first backward operation
    that needs its result, as PopART lowers recomputation (docs/notes in github.com/graphcore/popart). The kept results
    cut the forward pass into pieces; one piece is in memory at a time.

    Args:
        stage: Operations of the stage, forward and backward.
        recompute: Layers with kept results.
        is_last: Whether the stage has the loss.

    Returns:
        The operations as one micro-batch runs them, the forward pass first; the position of each in `stage`; and the
        positions of operations that run twice. Repeated operations make their own values.
    """
    return _Recomputation(stage, recompute, is_last).passes()


class _Recomputation:
    def __init__(self, stage: OpGraph, recompute: Recompute, is_last: bool) -> None:
        self._stage = stage
        values = stage.values
        self._forward = [index for index, op in enumerate(stage.ops) if op.phase == "forward"]
        kept = kept_results(stage, self._forward, recompute, is_last=is_last)
        there = {values[v].storage for v in (*stage.inputs.values(), *stage.constants)}
        there |= {values[v].storage for index in kept for v in stage.ops[index].makes()}
        self._makers: dict[int, list[int]] = {}  # operations that make or change a dropped storage, by storage
        for index in self._forward:
            op = stage.ops[index]
            for storage in {values[v].storage for v in (*op.makes(), *op.writes)} - there:
                self._makers.setdefault(storage, []).append(index)
        self._values = ValueList(values)
        self._copies: dict[int, int] = {}  # recomputed storages, by dropped storage
        self._renamed: dict[int, int] = {}  # recomputed values, by dropped value
        self._again: set[int] = set()

    def passes(self) -> tuple[OpGraph, Sequence[int], Sequence[int]]:
        """Return the passes, as `with_recomputation` describes."""
        order = list(self._forward)
        ops = [self._stage.ops[index] for index in order]
        for index, op in enumerate(self._stage.ops):
            if op.phase == "forward":
                continue
            for before in (*self._needed(op), index):
                ops.append(self._copied(self._stage.ops[before]))
                order.append(before)
        graph = with_ops(self._stage, ops, self._stage.outputs, values=self._values)
        return graph, order, sorted(self._again)

    def _needed(self, op: Op) -> list[int]:
        """Return the operations that must run again before an operation, in the order of the forward pass."""
        values, found = self._stage.values, set[int]()
        waiting = [values[v].storage for v in content_reads(op)]
        while waiting:
            storage = waiting.pop()
            if storage in self._copies or storage not in self._makers:
                continue
            self._copies[storage] = self._values.new_storage()
            for index in self._makers[storage]:
                if index not in self._again:
                    self._again.add(index)
                    found.add(index)
                    maker = self._stage.ops[index]
                    waiting += [values[v].storage for v in (*maker.reads(), *maker.makes())]
        return sorted(found)

    def _copied(self, op: Op) -> Op:
        """Return the operation with recomputed values in place of dropped values."""
        return renumbered(op, self._value, lambda v: self._made_again(v, op), phase="backward")

    def _made_again(self, v: int, op: Op) -> int:
        """Return a result's value. A kept result next to a dropped result is also made again."""
        value = self._stage.values[v]
        if op.phase != "forward" or value.storage in self._copies or v in op.reads():
            return self._value(v)
        if value.storage not in {self._stage.values[read].storage for read in op.reads()}:
            value = replace(value, storage=self._values.new_storage())
        return self._values.add(value)

    def _value(self, v: int) -> int:
        value: Value = self._stage.values[v]
        if value.storage not in self._copies:
            return v
        if v not in self._renamed:
            self._renamed[v] = self._values.add(replace(value, storage=self._copies[value.storage]))
        return self._renamed[v]

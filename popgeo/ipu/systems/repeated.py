"""The passes of a stage that repeats its forward pass: what runs again, when, and what waits until then."""

from collections.abc import Sequence
from dataclasses import replace

from popgeo.capture.op_graph import Op, OpGraph, Value
from popgeo.capture.passes import new_storages, renumbered
from popgeo.engine.pipeline.replay import kept_results
from popgeo.engine.pipeline.staging import Recompute
from popgeo.ipu.options import Options
from popgeo.ipu.systems.stage_cut import require_layers

_SHAPES_ALONE = ("full_like", "zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty")


def recompute_of(graph: OpGraph, options: Options) -> Recompute | None:
    """What is repeated, as `Options.recompute` and `recompute_last_stage` say it; None if nothing is.

    Raises:
        ValueError: a name is not a layer of the forward pass.
    """
    recompute = options.recompute
    if not recompute:
        return None
    layers = () if isinstance(recompute, bool) else tuple(recompute)
    require_layers(graph, layers, "Options.recompute")
    return Recompute(layers=layers, last_stage=options.recompute_last_stage)


def contents(op: Op) -> tuple[int, ...]:
    """The values that an operation reads, without values of which it takes only the shape."""
    return () if op.target.split(".")[1] in _SHAPES_ALONE else op.reads()


def repeated(
    stage: OpGraph, recompute: Recompute, *, is_last: bool = False
) -> tuple[OpGraph, Sequence[int], Sequence[int]]:
    """The passes of a stage where results are dropped that no layer named keeps, and worked out again later.

    An operation runs again right before the first operation of the backward pass that needs its result, as PopART
    lowers recomputation (docs/notes in github.com/graphcore/popart). What layers named keep cuts the forward pass into
    pieces of which only one is there at a time.

    Args:
        stage: Its operations, forward and backward.
        recompute: Layers whose results are kept.
        is_last: Whether it is the stage with the loss.

    Returns:
        The operations as one micro-batch runs them, the forward pass first; the position in `stage` of each of them;
        and the positions of those that run twice. Repeated operations make values of their own.
    """
    return _Repeater(stage, recompute, is_last).passes()


class _Repeater:
    def __init__(self, stage: OpGraph, recompute: Recompute, is_last: bool) -> None:
        self._stage = stage
        values = stage.values
        self._forward = [index for index, op in enumerate(stage.ops) if op.phase == "forward"]
        kept = kept_results(stage, self._forward, recompute, is_last=is_last)
        there = {values[v].storage for v in (*stage.inputs.values(), *stage.constants)}
        there |= {values[v].storage for index in kept for v in stage.ops[index].makes()}
        self._makers: dict[int, list[int]] = {}  # of what is dropped, by storage: who makes and who changes it
        for index in self._forward:
            op = stage.ops[index]
            for storage in {values[v].storage for v in (*op.makes(), *op.writes)} - there:
                self._makers.setdefault(storage, []).append(index)
        self._values = list(values)
        self._storages = new_storages(values)
        self._copies: dict[int, int] = {}  # of storages
        self._renamed: dict[int, int] = {}  # values
        self._again: set[int] = set()

    def passes(self) -> tuple[OpGraph, Sequence[int], Sequence[int]]:
        order = list(self._forward)
        ops = [self._stage.ops[index] for index in order]
        for index, op in enumerate(self._stage.ops):
            if op.phase == "forward":
                continue
            for before in (*self._needed(op), index):
                ops.append(self._copied(self._stage.ops[before]))
                order.append(before)
        producers = {v: place for place, op in reversed(list(enumerate(ops))) for v in op.makes()}
        # What is not needed has no producer.
        values = [one.made_by(None if one.producer is None else producers.get(v)) for v, one in enumerate(self._values)]
        return replace(self._stage, ops=tuple(ops), values=tuple(values)), order, sorted(self._again)

    def _needed(self, op: Op) -> list[int]:
        """What has to run again before an operation, in the order of the forward pass."""
        values, found = self._stage.values, set[int]()
        waiting = [values[v].storage for v in contents(op)]
        while waiting:
            storage = waiting.pop()
            if storage in self._copies or storage not in self._makers:
                continue
            self._copies[storage] = next(self._storages)
            for index in self._makers[storage]:
                if index not in self._again:
                    self._again.add(index)
                    found.add(index)
                    maker = self._stage.ops[index]
                    waiting += [values[v].storage for v in (*maker.reads(), *maker.makes())]
        return sorted(found)

    def _copied(self, op: Op) -> Op:
        """The operation on what was worked out again."""
        return renumbered(op, self._value, lambda v: self._made_again(v, op), phase="backward")

    def _made_again(self, v: int, op: Op) -> int:
        """A result; one that was kept, next to another that was not, is made once more without need."""
        value = self._stage.values[v]
        if op.phase != "forward" or value.storage in self._copies or v in op.reads():
            return self._value(v)
        if value.storage not in {self._stage.values[read].storage for read in op.reads()}:
            value = replace(value, storage=next(self._storages))
        self._values.append(value)
        return len(self._values) - 1

    def _value(self, v: int) -> int:
        value: Value = self._stage.values[v]
        if value.storage not in self._copies:
            return v
        if v not in self._renamed:
            self._renamed[v] = len(self._values)
            self._values.append(replace(value, storage=self._copies[value.storage]))
        return self._renamed[v]

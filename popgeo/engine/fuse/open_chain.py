"""A chain under construction: takes operations one by one and keeps account of the memory that they touch."""

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from popgeo.capture.op_graph import Number, Op, OpGraph, Ref, Value
from popgeo.engine.fuse.chain import AT_ROWS, OPERANDS, Chain, ElementPlace, Kind, Source, Step, collapse, fits_edges
from popgeo.engine.fuse.chain_steps import WRITERS
from popgeo.engine.fuse.edge_rows import RowMove

_MOST_STEPS = 48
SUMS = ("aten.sum.dim_IntList", "aten.sum.default")

Key = tuple[int, int, tuple[int, ...]]  # storage, offset and strides identify elements in an order


@dataclass(kw_only=True)
class ChainContent:
    """The content of a chain.

    Attributes:
        made: The storages that the chain creates.
        tables: The tables of gathers and scatters: the value of the index, and the number of rows.
        joins_at: The table of the chain's scatters; None without scatters.
        changed: The elements that the chain changes in each storage from before the chain.
        read: The elements that the chain reads, by storage.
        held: The source of each value that the chain has computed or gathered.
        steps: The instructions, in order.
        operands: Places of values from before the chain.
        numbers: Numbers of the steps, by their text, because 0 and -0 have different texts.
        sums: The step and the place of each sum or scatter.
        places: The place of each value in `held`.
    """

    made: set[int] = field(default_factory=set)
    tables: set[tuple[int, int]] = field(default_factory=set)
    joins_at: tuple[int, int] | None = None
    changed: dict[int, Key] = field(default_factory=dict)
    read: dict[int, set[Key]] = field(default_factory=dict)
    held: dict[Key, Source] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    operands: list[ElementPlace] = field(default_factory=list)
    numbers: dict[str, float | Number] = field(default_factory=dict)
    sums: list[tuple[int, ElementPlace]] = field(default_factory=list)
    places: dict[Key, ElementPlace] = field(default_factory=dict)

    def copied(self) -> "ChainContent":
        """Return a copy that shares no list or dictionary with this content."""
        parts = {one.name: copy.copy(getattr(self, one.name)) for one in fields(self)}
        return ChainContent(**parts | {"read": {storage: set(keys) for storage, keys in self.read.items()}})


def elements_of(op: Op, values: Sequence[Value], move: RowMove | None = None) -> Value:
    """Return the value with the elements that an operation iterates over."""
    joined = move.moved if move is not None and move.code in AT_ROWS else None
    return values[joined if joined is not None else op.reads()[0] if op.target in SUMS else op.makes()[0]]


def summed_dimensions(op: Op, values: Sequence[Value]) -> list[int] | None:
    """Return the dimensions that a sum removes; None if the operation is not a sum that a chain can contain."""
    if op.target not in SUMS or op.kwargs:
        return None
    operand, result = values[op.reads()[0]], values[op.makes()[0]]
    if operand.dtype != torch.float32 or result.dtype != torch.float32 or not math.prod(operand.shape):
        return None
    chosen = op.args[1] if op.target == "aten.sum.dim_IntList" and op.args[1] else range(len(operand.shape))
    return sorted({d % len(operand.shape) for d in chosen}) if operand.shape else None


class OpenChain:
    """A chain that can take more operations on the same elements.

    Args:
        first: A value of these elements; the chain follows the order of its dimensions in memory.

    Attributes:
        sizes: The shape of the elements without dimensions of size 1.
        ops: The operations so far.
        content: Their steps, and the memory that they touch.
    """

    def __init__(self, first: Value) -> None:
        self.sizes = tuple(size for size in first.shape if size != 1)
        self.ops: list[Op] = []
        self.content = ChainContent()
        strides = [step for size, step in zip(first.shape, first.stride, strict=True) if size != 1]
        self._order = sorted(range(len(strides)), key=lambda d: -strides[d])

    def conflicts(self, touched: Collection[int], changed: Collection[int]) -> bool:
        """Return whether an operation that touches and changes these storages must not cross the chain."""
        apart = self.content.made.isdisjoint(touched) and self.content.changed.keys().isdisjoint(touched)
        return not apart or not self.content.read.keys().isdisjoint(changed)

    def add(self, op: Op, graph: OpGraph, move: RowMove | None = None) -> bool:
        """Add an operation on the chain's elements; return False and change nothing if its memory forbids that."""
        before, self.content = self.content, self.content.copied()
        if move is not None:
            added = self._add_move(op, graph, move)
        else:
            added = (self._add_sum if op.target in SUMS else self._add_elementwise)(op, graph)
        if not added or not self._is_plain():
            self.content = before
            return False
        self.ops.append(op)
        return True

    def take_over(self, other: "OpenChain", graph: OpGraph, move_of: Callable[[Op], RowMove | None]) -> bool:
        """Add all operations of another chain; return False and change nothing if one of them does not fit."""
        ops, before = list(self.ops), self.content
        if self._order == other._order and all(self.add(op, graph, move_of(op)) for op in other.ops):
            return True
        self.ops, self.content = ops, before
        return False

    def program(self, outside: Collection[int], orders: Mapping[tuple[int, int], int]) -> Chain:
        """Return the finished chain.

        Args:
            outside: The storages that other operations touch; the chain stores only results in these.
            orders: The value with the sorted edges of each table.
        """
        kept = self.content.made.intersection(outside) | self.content.changed.keys()
        held = {key: source for key, source in self.content.held.items() if key[0] in kept}
        steps = {key: self._step("copy", s) if s.kind is Kind.VALUE else s for key, s in held.items()}
        results = [(source.index, self.content.places[key]) for key, source in steps.items()] + self.content.sums
        return Chain(
            shape=tuple(self.sizes[d] for d in self._order),
            steps=tuple(self.content.steps),
            operands=tuple(self.content.operands),
            numbers=tuple(self.content.numbers.values()),
            results=tuple(results),
            num_ops=len(self.ops),
            of_edges=bool(self.content.tables),
            order=None if self.content.joins_at is None else orders[self.content.joins_at],
        )

    def _add_elementwise(self, op: Op, graph: OpGraph) -> bool:
        (made,) = op.makes()
        result = graph.values[made]
        if not math.prod(result.shape):
            return False
        conflict = False

        def handle(argument: Any) -> Source:
            nonlocal conflict
            if isinstance(argument, Source):
                return argument
            if isinstance(argument, Ref):
                source = self._source(argument.value, graph.values[argument.value], result.shape)
                conflict |= source is None
                return source or Source(Kind.VALUE, 0)
            return self._number(argument if isinstance(argument, Number) else float(argument))

        def write(code: str, *operands: Any) -> Source:
            return self._step(code, *map(handle, operands))

        if (made_by := WRITERS[op.target](write, *op.args, **op.kwargs)) is None or conflict:
            return False
        return self._hold(made, result, made_by, is_new=made not in op.writes)

    def _hold(self, v: int, value: Value, source: Source, *, is_new: bool) -> bool:
        key = self._key(value, value.shape)
        if any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride, strict=True)):
            return False
        if is_new:
            self.content.made.add(value.storage)
        elif value.storage in self.content.made:
            if key not in self.content.held:
                return False
        else:
            before, read = self.content.changed.get(value.storage, key), self.content.read.get(value.storage, set())
            if before != key or not read <= {key}:
                return False
            self.content.changed[value.storage] = key
        self.content.held[key] = source
        self.content.places.setdefault(key, ElementPlace(value=v, strides=key[2]))
        return True

    def _add_sum(self, op: Op, graph: OpGraph) -> bool:
        (taken,), (made,) = op.reads(), op.makes()
        operand, result = graph.values[taken], graph.values[made]
        summed = summed_dimensions(op, graph.values)
        source = self.content.held.get(self._key(operand, operand.shape))
        if summed is None or source is None:
            return False
        keeps = len(result.shape) == len(operand.shape)
        left = iter(result.stride)
        strides = [next(left) if keeps or d not in summed else 0 for d in range(len(operand.shape))]
        strides = [0 if d in summed else step for d, step in enumerate(strides)]
        if all(operand.shape[d] == 1 for d in summed):
            return False
        named = [step for size, step in zip(operand.shape, strides, strict=True) if size != 1]
        step = self._step("sum", source)
        self.content.made.add(result.storage)
        self.content.sums.append((step.index, ElementPlace(value=made, strides=tuple(named[d] for d in self._order))))
        return True

    def _add_move(self, op: Op, graph: OpGraph, move: RowMove) -> bool:
        """Add a gather or a scatter."""
        (made,), taken = op.makes(), graph.values[move.moved]
        result, table = graph.values[made], (move.index, move.num_rows)
        self.content.tables.add(table)
        if move.code == "take":
            key = self._key(result, result.shape)
            storage, offset, strides = self._key(taken, result.shape)
            if storage in self.content.made or storage in self.content.changed:
                return False
            if taken.shape[0] == 1:  # the stride of a single row is arbitrary
                strides = (0, *strides[1:])
            self.content.read.setdefault(storage, set()).add((storage, offset, (*strides, -1 - move.index)))
            self.content.held[key] = self._operand(ElementPlace(value=move.moved, strides=strides, index=move.index))
            self.content.places.setdefault(key, ElementPlace(value=made, strides=key[2]))
        else:
            source = self._source(move.moved, taken, taken.shape)
            if source is None or self.content.joins_at not in (None, table):
                return False
            self.content.joins_at = table
            strides = (result.stride[0], *self._key(result, taken.shape)[2][1:])
            place = ElementPlace(value=made, strides=strides, index=move.index)
            self.content.sums.append((self._step(move.code, source).index, place))
        self.content.made.add(result.storage)
        return True

    def _source(self, v: int, value: Value, shape: tuple[int, ...]) -> Source | None:
        """Return the source of an operand; None if it is a different view of memory that the chain makes or changes."""
        key = self._key(value, shape)
        if key in self.content.held:
            return self.content.held[key]
        if value.storage in self.content.made or value.storage in self.content.changed:
            return None
        self.content.read.setdefault(value.storage, set()).add(key)
        return self._operand(ElementPlace(value=v, strides=key[2]))

    def _operand(self, place: ElementPlace) -> Source:
        if place not in self.content.operands:
            self.content.operands.append(place)
        return Source(Kind.VALUE, self.content.operands.index(place))

    def _step(self, code: str, *operands: Source) -> Source:
        step = Step(code, operands)
        if step in self.content.steps and code in OPERANDS:
            return Source(Kind.STEP, self.content.steps.index(step))
        self.content.steps.append(step)
        return Source(Kind.STEP, len(self.content.steps) - 1)

    def _number(self, number: float | Number) -> Source:
        self.content.numbers.setdefault(repr(number), number)
        return Source(Kind.NUMBER, list(self.content.numbers).index(repr(number)))

    def _key(self, value: Value, shape: tuple[int, ...]) -> Key:
        """Return the elements of a value that an operation with a result of this shape reads, in the chain's order."""
        missing = len(shape) - len(value.shape)
        own = [0] * missing + [step if size != 1 else 0 for size, step in zip(value.shape, value.stride, strict=True)]
        strides = [step for step, whole in zip(own, shape, strict=True) if whole != 1]
        return value.storage, value.offset, tuple(strides[d] for d in self._order)

    def _is_plain(self) -> bool:
        """Return whether the chain is short enough, and rows and columns describe all its places."""
        now = self.content
        places = [place.strides for place in (*now.operands, *now.places.values(), *(p for _, p in now.sums))]
        if len(now.steps) > _MOST_STEPS:
            return False
        if now.tables:
            return self._order == sorted(self._order) and fits_edges(self.sizes, places, len(now.sums))
        return len(collapse(tuple(self.sizes[d] for d in self._order), places)[0]) <= 2

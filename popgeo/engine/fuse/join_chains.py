"""Finds element-wise operations that can run as one chain, and replaces them by one operation."""

import functools
from collections.abc import Sequence
from typing import Any

from popgeo.capture.op_graph import Number, Op, OpGraph, Ref
from popgeo.capture.operations import Out, operation_of
from popgeo.capture.passes import with_ops
from popgeo.engine.fuse.block_program import fits_registers
from popgeo.engine.fuse.chain import CHAIN, EDGE_CHAIN, EXACT
from popgeo.engine.fuse.chain_steps import fits
from popgeo.engine.fuse.edge_rows import EdgeOrders, row_moves
from popgeo.engine.fuse.open_chain import OpenChain, elements_of, summed_dimensions
from popgeo.engine.out_variants import allocates
from popgeo.native import library

# Open chains at one time; an open chain waits for operations that continue it, and keeps its operands alive.
_MOST_OPEN = 4


def join_chains(graph: OpGraph) -> OpGraph:
    """Return the graph with each chain of element-wise operations as one operation.

    A chain runs before the first operation that needs one of its values. An operation between two operations of a
    chain runs before the chain. This is allowed if neither touches memory that the other changes. A chain also
    takes sums of its values. A chain of edges also takes gathers and scatters, so gathered rows are never in memory for
    all edges. On processors without fused multiply-add, which are older than 2014, the graph stays unchanged.
    """
    if not _is_fast():
        return graph
    search = _Search(graph)
    for op in search.graph.ops:
        search.add(op)
    return search.result()


@functools.cache
def _is_fast() -> bool:
    choose = library.function("popgeo_chain_isa", "q", "q")
    return choose is not None and bool(choose(2))


def describe_joined(graph: OpGraph) -> str:
    """Return a text with the numbers of operations and chains; empty without chains."""
    chains = [op.args[0] for op in graph.ops if op.target in (CHAIN, EDGE_CHAIN)]
    if not chains:
        return ""
    num_ops, noun = sum(chain.num_ops for chain in chains), "chain" if len(chains) == 1 else "chains"
    return f"{num_ops:,} operations in {len(chains):,} {noun}"


class _Search:
    def __init__(self, graph: OpGraph) -> None:
        self.graph, self._moves = row_moves(graph)
        self._storage = [value.storage for value in self.graph.values]
        self._open: list[OpenChain] = []
        self._items: list[Op | OpenChain] = []

    def add(self, op: Op) -> None:
        """Add one operation to a chain, or put it after the chains that it depends on."""
        touched, changed = self._touched(op)
        near = [chain for chain in self._open if chain.conflicts(touched, changed)]
        chain = self._chain_for(op, near)
        if chain is None:
            for other in near:
                self._emit(other)
            self._items.append(op)
        elif len(self._open) > _MOST_OPEN:
            self._emit(self._open[0])

    def result(self) -> OpGraph:
        for chain in list(self._open):
            self._emit(chain)
        graph, ops = self.graph, list[Op]()
        outside, orders = self._shared(), EdgeOrders(graph.values)
        for item in self._items:
            if isinstance(item, OpenChain):
                _write(item, graph, outside, orders, ops)
            else:
                ops.append(item)
        needed = {v for op in ops for v in op.reads()} | {*graph.outputs}
        # Zeros whose scatter is now in a chain have no reader.
        ops = [op for op in ops if operation_of(op.target).out is not Out.ZEROS or not needed.isdisjoint(op.makes())]
        return with_ops(graph, ops, graph.outputs, values=orders.values)

    def _move_of(self, op: Op) -> Any:
        """Return the gather or scatter of an operation; None if it is neither."""
        made = op.makes()
        return self._moves.get(made[0]) if len(made) == len(op.outputs) == 1 else None

    def _chain_for(self, op: Op, near: Sequence[OpenChain]) -> OpenChain | None:
        """Add the operation to an open or a new chain, and return that chain; None if no chain can contain it."""
        graph, move = self.graph, self._move_of(op)
        sums = summed_dimensions(op, graph.values) is not None
        if not sums and move is None and not fits(op, graph.values):
            return None
        new = OpenChain(elements_of(op, graph.values, move))
        fitting = [chain for chain in near if chain.sizes == new.sizes]
        if sums and not fitting:
            return None
        for other in near:
            if other not in fitting:
                self._emit(other)
        for other in fitting[1:]:
            if fitting[0].take_over(other, graph, self._move_of):
                self._open.remove(other)
            else:
                self._emit(other)
        for chain in fitting[:1]:
            if chain.add(op, graph, move):
                return chain
            self._emit(chain)
        if sums or not new.add(op, graph, move):
            return None
        self._open.append(new)
        return new

    def _emit(self, chain: OpenChain) -> None:
        if chain in self._open:
            self._open.remove(chain)
            self._items.append(chain)

    def _touched(self, op: Op) -> tuple[set[int], set[int]]:
        storage = self._storage
        return {storage[v] for v in op.reads() + op.makes()}, {storage[v] for v in op.writes}

    def _shared(self) -> set[int]:
        """Return the storages that several chains or operations touch, and the storages of results."""
        shared = {self._storage[v] for v in self.graph.outputs if v is not None}
        only_user: dict[int, int] = {}
        for item in self._items:
            for op in [item] if isinstance(item, Op) else item.ops:
                shared |= {s for s in self._touched(op)[0] if only_user.setdefault(s, id(item)) != id(item)}
        return shared


def _write(chain: OpenChain, graph: OpGraph, outside: set[int], orders: EdgeOrders, ops: list[Op]) -> None:
    """Append a chain as one operation, or its operations if a chain is not faster."""
    # A single operation is a chain only if a chain gives torch's bits, or if torch cannot write into given memory.
    first, last = chain.ops[0], chain.ops[-1]
    alone = first is last and (bool(first.writes) or not allocates(graph, first))
    is_exact = not chain.content.tables and all(step.code in EXACT for step in chain.content.steps)
    if alone and not is_exact and chain.content.joins_at is None:
        ops += chain.ops
        return
    made = {table: orders.order(*table, first, ops) for table in sorted(chain.content.tables)}
    program = chain.program(outside, made)
    if not fits_registers(program, orders.values):
        ops += chain.ops
        return
    inputs = {place.value for place in program.operands} | {*made.values()} | {index for index, _ in made}
    results = [place.value for _, place in program.results]
    changed = tuple(v for v in results if graph.values[v].storage not in chain.content.made)
    refs: list[Any] = [Ref(v) for v in dict.fromkeys([*sorted(inputs), *changed])]
    numbers = [number for number in program.numbers if isinstance(number, Number)]
    joined = Op(
        target=EDGE_CHAIN if program.of_edges else CHAIN,
        args=(program, refs, numbers),
        outputs=tuple(results),
        writes=changed,
        phase=first.phase,
        module=first.module if first.module == last.module else "",
        source=first.source,
    )
    ops.append(joined)

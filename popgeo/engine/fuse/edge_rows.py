"""Prepares a graph so that chains of edges can contain gathers (rows of a table per edge) and sums of edges per row.

A chain can contain a gather only if it uses the gathered rows itself. So each use of gathered rows gets its own gather,
if that costs less than memory for all edges.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value
from popgeo.capture.passes import drop_unused, replace_values, with_ops
from popgeo.capture.value_list import ValueList
from popgeo.engine.fuse.chain_steps import fits
from popgeo.engine.fuse.def_use import DefUse, ref
from popgeo.ops.scatter_plan import fill_order

EDGE_ORDER = "popgeo.edge_order.default"
_MOVES = {
    "aten.index_select.default": "take", "aten.gather.default": "take",
    "aten.index_add.default": "sum_at", "aten.scatter_add.default": "sum_at",
    "popgeo.gather.default": "take", "popgeo.scatter_sum.default": "sum_at",
}  # fmt: skip
_MOST_SUMMED = 4096  # elements; a larger scatter_sum runs faster by itself, since it needs no sorted edges
_MOST_STEPS = 8  # steps to compute a value of edges again
_SMALL = 8  # an operand stays in memory if it has fewer elements by this factor
_REDUCED = {"sum": "sum_at", "amax": "max_at", "amin": "min_at"}
_IN_PLACE = "aten.index_add_.default", "aten.scatter_add_.default", "aten.scatter_reduce_.two"
_FILLED = {"aten.new_zeros.default": "aten.zeros.default", "aten.new_ones.default": "aten.ones.default"}
_ZEROS = "aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default"


@dataclass(frozen=True, kw_only=True)
class RowMove:
    """A gather or scatter between edges and the rows of a table, along the first dimension of both.

    Attributes:
        code: `take` for a gather; `sum_at`, `max_at` or `min_at` for a scatter.
        moved: The value that is gathered (the table) or scattered (of the edges).
        index: The value with the row of each edge.
        num_rows: Rows of the table.
    """

    code: str
    moved: int
    index: int
    num_rows: int


def row_moves(graph: OpGraph) -> tuple[OpGraph, Mapping[int, RowMove]]:
    """Return a prepared graph, and its gathers and scatters by the value that each one makes.

    In the prepared graph, scatters into new zeros return a new value, and each use of gathered rows has its own gather.
    """
    graph = _out_of_place(graph)
    found = _moves(graph)
    taken = {v for v, move in found.items() if move.code == "take"}
    if not taken:
        return graph, found
    graph = _GatherAtUses(graph, taken, found.keys() - taken).graph()
    return graph, _moves(graph)


def _moves(graph: OpGraph) -> dict[int, RowMove]:
    uses = DefUse(graph)
    return {op.makes()[0]: move for op in graph.ops if (move := _move_of(uses, op)) is not None}


def _move_of(uses: DefUse, op: Op) -> RowMove | None:
    """Return an operation as a gather or scatter that chains can contain; None if it is not."""
    values, code, ours = uses.graph.values, _MOVES.get(op.target), op.target.startswith("popgeo.")
    if op.target == "aten.scatter_reduce.two" and op.kwargs.get("include_self") is False:
        code = _REDUCED.get(op.args[4])
    has_plan = ours and len(op.reads()) > 2  # the user has sorted the edges
    if code is None or op.kwargs.get("alpha", 1) != 1 or has_plan:
        return None
    first, (made,), takes = ref(op.args[0]), op.makes(), code == "take"
    edges = made if takes else first if ours else ref(op.args[3])
    table = first if takes else made
    shape = values[edges].shape
    # Chains have no dimensions of size 1, so a single edge does not count.
    is_served = len(shape) > 0 and shape[0] > 1 and values[edges].numel > 0 and values[table].dtype is torch.float32
    if not is_served or values[table].shape[1:] != shape[1:] or not (uses.is_plain(made) and uses.is_plain(edges)):
        return None
    if not takes and not (values[edges].numel <= _MOST_SUMMED if ours else _is_zero(uses, first)):
        return None
    index = _rows_of(uses, op, shape) if ours or op.args[1] in (0, -len(shape)) else None
    if index is None or not uses.is_stable(first):
        return None
    return RowMove(code=code, moved=first if takes else edges, index=index, num_rows=values[table].shape[0])


def _out_of_place(graph: OpGraph) -> OpGraph:
    """Return the graph with each in-place scatter into new zeros replaced by a scatter that returns a new value."""
    graph = with_ops(graph, [_without_prototype(op, graph.values) for op in graph.ops], graph.outputs)
    uses, values, ops = DefUse(graph), ValueList(graph.values), list(graph.ops)
    writers = Counter(values[v].storage for op in graph.ops for v in op.writes)
    for index, op in enumerate(graph.ops):
        if op.target not in _IN_PLACE:
            continue
        (v,) = op.makes()
        zeros, storage = values[v].producer, values[v].storage
        if zeros is None or ops[zeros].target not in _ZEROS or writers[storage] != 1 or min(uses.users[v]) < index:
            continue
        base = values.add(replace(values[v], storage=values.new_storage()))
        ops[zeros] = replace(ops[zeros], outputs=(base,))
        ops[index] = replace(op, target=op.target.replace("_.", "."), args=(Ref(base), *op.args[1:]), writes=())
    return with_ops(graph, ops, graph.outputs, values=values)


def _without_prototype(op: Op, values: Sequence[Value]) -> Op:
    """Return zeros or ones by shape and type instead of a prototype tensor, which may then be unused."""
    if op.target not in _FILLED:
        return op
    shape, dtype = list(op.args[1]), values[op.makes()[0]].dtype
    return replace(op, target=_FILLED[op.target], args=(shape,), kwargs={"dtype": dtype})


def _rows_of(uses: DefUse, op: Op, shape: Sequence[int]) -> int | None:
    """Return the value with the row of each edge, for a gather or scatter; None if elements have different rows."""
    v = ref(op.args[1] if op.target.startswith("popgeo.") else op.args[2])
    if op.target in ("aten.gather.default", "aten.scatter_add.default", "aten.scatter_reduce.two"):
        # These take a row for each element; it must be the same for all elements of an edge.
        values = uses.graph.values
        if values[v].shape != tuple(shape):
            return None
        widened = uses.maker(v, "aten.expand.default")
        column = v if widened is None else ref(widened.args[0])
        flat = uses.flat(column) if values[column].shape == (shape[0], *[1] * (len(shape) - 1)) else None
        return flat if uses.is_plain(flat, shape[:1], torch.int64) else None
    return v if uses.is_plain(v, shape[:1], torch.int64) else None


def _is_zero(uses: DefUse, v: int) -> bool:
    """Return whether a value is zero and never changes in place."""
    constant = uses.graph.constants.get(v)
    return uses.maker(v, *_ZEROS) is not None if constant is None else not constant.any()


class _GatherAtUses:
    """A rewriter of a graph that gives each use of gathered rows, and of values computed from them, its own copy.

    Args:
        graph: The graph, in which scatters return new values.
        taken: The values of gathers.
        joined: The values of scatters.
    """

    def __init__(self, graph: OpGraph, taken: Set[int], joined: Set[int]) -> None:
        self._graph, self._taken, self._joined = graph, taken, joined
        self._values, self._ops = ValueList(graph.values), list[Op]()
        self._mutated = graph.mutated_storages()
        self._maker: dict[int, Op] = {}
        self._steps: dict[int, int] = {}  # steps to compute a value again

    def graph(self) -> OpGraph:
        """Return the rewritten graph."""
        for op in self._graph.ops:
            computes = fits(op, self._graph.values)
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
        """Return the number of steps to compute the result again; None if that is too many or not allowed."""
        (made,), values = op.makes(), self._graph.values
        if made in self._taken:
            return 0
        if op.writes or values[made].storage in self._mutated or not (computes or self._graph.is_view(op)):
            return None
        again = [v for v in op.reads() if v in self._steps]
        kept = [values[v] for v in op.reads() if v not in self._steps]
        small = all(v.numel * _SMALL <= values[made].numel and v.storage not in self._mutated for v in kept)
        steps = int(computes) + sum(self._steps[v] for v in again)
        return steps if again and small and steps <= _MOST_STEPS else None

    def _remake(self, v: int, own: dict[int, int]) -> None:
        """Append operations that compute a value again, and note the new value in `own`, if that is allowed."""
        if v in own or v not in self._steps:
            return
        op, value = self._maker[v], self._values[v]
        for operand in op.reads():
            self._remake(operand, own)
        base = op.reads()[0]
        storage = self._values[own[base]].storage if self._graph.is_view(op) else self._values.new_storage()
        own[v] = self._values.add(replace(value, storage=storage))
        self._ops.append(replace(replace_values(op, own), outputs=(own[v],)))


class EdgeOrders:
    """The edge orders that the chains of a graph need; each order is computed once, before its first use.

    Args:
        values: The values of the graph.

    Attributes:
        values: The same values, then the orders.
    """

    def __init__(self, values: Sequence[Value]) -> None:
        self.values = ValueList(values)
        self._made: dict[tuple[int, int], int] = {}

    def order(self, index: int, num_rows: int, op: Op, ops: list[Op]) -> int:
        """Return the value with the edges sorted by row; append its operation to `ops` if it is new.

        Args:
            index: The value with the row of each edge.
            num_rows: Rows of the table.
            op: The operation that needs it, whose place in the source the new operation gets.
            ops: The operations so far.
        """
        key = index, num_rows
        if key not in self._made:
            made = self._made[key] = self.values.new((3 + num_rows + self.values[index].numel,), torch.int32)
            args = Ref(index), num_rows
            ops.append(replace(op, target=EDGE_ORDER, args=args, kwargs={}, outputs=(made,), writes=()))
        return self._made[key]


def order_call(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> Callable[[], None]:
    """Return a call that sorts edges by row."""
    made, (index, num_rows) = tensors[op.makes()[0]], op.args
    head, rowptr, perm = made[:2].numpy(), made[2 : 3 + num_rows], made[3 + num_rows :]

    def call() -> None:
        head[:] = fill_order(tensors[index.value], rowptr, perm), num_rows

    return call

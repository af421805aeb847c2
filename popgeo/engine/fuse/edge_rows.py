"""Rows that edges take from a table and sums of edges at its rows, as chains of edges have them."""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value
from popgeo.engine.fuse.def_use import DefUse, ref
from popgeo.engine.fuse.prepared import PreparedCall, PreparedOp, register_prepared
from popgeo.engine.fuse.remake import RowsAtUses
from popgeo.engine.fuse.sums_out_of_place import is_zero, out_of_place, rows_of
from popgeo.ops.scatter_plan import sort_edges

EDGE_ORDER = "popgeo.edge_order.default"
_MOVES = {
    "aten.index_select.default": "take", "aten.gather.default": "take",
    "aten.index_add.default": "sum_at", "aten.scatter_add.default": "sum_at",
    "popgeo.gather.default": "take", "popgeo.scatter_sum.default": "sum_at",
}  # fmt: skip
_MOST_SUMMED = 4096  # elements: our own sum needs no order of edges, and its call costs less than that from here on
_REDUCED = {"sum": "sum_at", "amax": "max_at", "amin": "min_at"}


@dataclass(frozen=True, kw_only=True)
class RowMove:
    """An operation between edges and the rows of a table, by the first dimension of both.

    Attributes:
        code: `take`, or what joins the edges of a row: `sum_at`, `max_at`, `min_at`.
        moved: The table that rows are taken from, or what edges have for it.
        index: The row of each edge.
        num_rows: Of the table.
    """

    code: str
    moved: int
    index: int
    num_rows: int


def row_moves(graph: OpGraph) -> tuple[OpGraph, Mapping[int, RowMove]]:
    """The graph, and what it moves between edges and rows, by the value that is made.

    Sums into new zeros make a value of their own instead of changing the zeros, and rows are taken again for each use.
    """
    graph = out_of_place(graph)
    found = _moves(graph)
    taken = {v for v, move in found.items() if move.code == "take"}
    if not taken:
        return graph, found
    graph = RowsAtUses(graph, taken, found.keys() - taken).graph()
    return graph, _moves(graph)


def _moves(graph: OpGraph) -> dict[int, RowMove]:
    uses = DefUse(graph)
    return {op.makes()[0]: move for op in graph.ops if (move := _move_of(uses, op)) is not None}


def _move_of(uses: DefUse, op: Op) -> RowMove | None:
    values, code, ours = uses.graph.values, _MOVES.get(op.target), op.target.startswith("popgeo.")
    if op.target == "aten.scatter_reduce.two" and op.kwargs.get("include_self") is False:
        code = _REDUCED.get(op.args[4])
    if (
        code is None or op.kwargs.get("alpha", 1) != 1 or (ours and len(op.reads()) > 2)
    ):  # with a plan of the user's own
        return None
    first, (made,), takes = ref(op.args[0]), op.makes(), code == "take"
    edges = made if takes else first if ours else ref(op.args[3])
    table = first if takes else made
    shape = values[edges].shape
    # One edge would be no dimension of a chain.
    is_served = len(shape) > 0 and shape[0] > 1 and values[edges].numel > 0 and values[table].dtype is torch.float32
    if not is_served or values[table].shape[1:] != shape[1:] or not (uses.is_plain(made) and uses.is_plain(edges)):
        return None
    if not takes and not (values[edges].numel <= _MOST_SUMMED if ours else is_zero(uses, first)):
        return None
    if ours:
        index = ref(op.args[1]) if uses.is_plain(ref(op.args[1]), shape[:1], torch.int64) else None
    else:
        index = rows_of(uses, op, shape) if op.args[1] in (0, -len(shape)) else None
    if index is None or not uses.is_stable(first):
        return None
    return RowMove(code=code, moved=first if takes else edges, index=index, num_rows=values[table].shape[0])


class EdgeOrders:
    """The orders of edges that the chains of a graph need, each made once, before it is needed first.

    Args:
        values: The graph's, to which those of the orders are added.
    """

    def __init__(self, values: list[Value]) -> None:
        self.values = values
        self._storages = itertools.count(max((value.storage for value in values), default=0) + 1)
        self._made: dict[tuple[int, int], int] = {}

    def order(self, index: int, num_rows: int, op: Op, ops: list[Op]) -> int:
        """The value of the edges in order of their rows; what makes it is added to the operations if it is new."""
        key = index, num_rows
        if key not in self._made:
            like = self.values[index]
            size, storage = 3 + num_rows + like.numel, next(self._storages)
            self.values.append(dataclasses.replace(like, shape=(size,), offset=0, dtype=torch.int32, storage=storage))
            made = self._made[key] = len(self.values) - 1
            args = Ref(index), num_rows
            ops.append(dataclasses.replace(op, target=EDGE_ORDER, args=args, kwargs={}, outputs=(made,), writes=()))
        return self._made[key]


def _prepare_order(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> PreparedCall:
    made, (index, num_rows) = tensors[op.makes()[0]], op.args
    head, rowptr, perm = made[:2].numpy(), made[2 : 3 + num_rows], made[3 + num_rows :]

    def call(*late: Tensor) -> None:
        (given,) = late or (tensors[index.value],)
        head[:] = sort_edges(given, rowptr, perm), num_rows

    return call


register_prepared(EDGE_ORDER, PreparedOp(prepare=_prepare_order))

"""Puts products in the order that costs less, and leaves out copies of what is only to be seen in another shape.

Every rule looks at one operation and at what made its operands, and names a function that does the same. Results are
those of the operations as written up to the order in which numbers are added, in forward and backward passes alike.
What a machine is charged for is the graph as it was written.
"""

from torch import Tensor, mm

from popgeo.capture.expand import GraphWriter
from popgeo.capture.op_graph import Op, OpGraph
from popgeo.engine.fuse.def_use import DefUse, ref
from popgeo.engine.fuse.edge_matrices import Instead, without_edge_matrices
from popgeo.engine.fuse.sums_out_of_place import out_of_place

_PRODUCTS = "aten.mm.default", "aten.addmm.default", "aten.bmm.default"
_NARROW, _LONG = 16, 256  # columns of a product, and rows that it sums over, that libraries are slow at


def reassociate(graph: OpGraph) -> OpGraph:
    """The graph with a function in the place of each operation that one does the work of at less cost."""
    if not any(op.target in _PRODUCTS for op in graph.ops):
        return graph
    graph = out_of_place(graph)
    uses = DefUse(graph)
    found = [_instead_of(uses, op) for op in graph.ops]
    if not any(found):
        return graph
    writer = GraphWriter(graph)
    for op, instead in zip(graph.ops, found, strict=True):
        if instead is None:
            writer.add(op)
        else:
            writer.put(op, *instead)
    return writer.graph()


def _instead_of(uses: DefUse, op: Op) -> Instead | None:
    for rule in (without_edge_matrices, _narrow, _shown):
        if (instead := rule(uses, op)) is not None:
            return instead
    return None


def _narrow(uses: DefUse, op: Op) -> Instead | None:
    """A long sum into few columns, as the same sum into few rows."""
    if op.target != "aten.mm.default":
        return None
    a, b = map(ref, op.args)
    (rows, length), columns = uses.graph.values[a].shape, uses.graph.values[b].shape[1]
    is_slow = 1 < columns <= _NARROW and length >= _LONG and rows >= 2 * columns
    return (_mm_turned, (a, b), "narrow") if is_slow and uses.untransposed(a) is not None else None


def _mm_turned(a: Tensor, b: Tensor) -> Tensor:
    return mm(b.t(), a.t()).t().contiguous()


def _shown(uses: DefUse, op: Op) -> Instead | None:
    """The operand itself where an operation only copies it into another shape."""
    copies = (
        (op.target == "aten.select_backward.default" and op.args[1][op.args[2]] == 1)
        or (op.target == "aten.repeat.default" and {*op.args[1]} == {1})
        or (op.target in ("aten.cat.default", "aten.stack.default") and len(op.args[0]) == 1)
    )
    if not copies:
        return None
    given, (made,) = op.reads(), op.makes()
    shape, dtype = uses.graph.values[made].shape, uses.graph.values[made].dtype
    is_safe = uses.is_plain(given[0], dtype=dtype) and uses.is_plain(made, dtype=dtype)
    return (lambda x: x.view(shape), given, ("shown", shape)) if is_safe else None

"""Adds up gradients graph by graph and then in pairs, so that a batch may be divided into micro-batches.

`sums_in_order` makes each sum over a batch a chain, which adds one row after the other. Such a sum cannot be divided:
the sum of two halves has other bits. Here the rows of each graph are a chain, and the graphs are added in pairs, the
pairs in pairs, and so on. So a batch has the bits of its halves and quarters, even if they run in different processes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from popgeo.capture.op_graph import Op, OpGraph, Ref, Role
from popgeo.capture.passes import drop_unused, with_ops
from popgeo.capture.value_list import ValueList, dense_value
from popgeo.engine.fuse.def_use import DefUse, ref
from popgeo.engine.fuse.sums_in_order import PRODUCT, ROW_SUM, is_dense

GRAPH_ROWS, GRAPH_SUM = "native.graph_rows.default", "native.graph_sum.default"
_MOST_CLASSES = 256  # rows of an embedding whose gradient is a product with a matrix of zeros and ones
_EMBEDDING = "aten.embedding_dense_backward.default"
_SAME = ("aten.view.default", "aten._unsafe_view.default", "aten.unsqueeze.default", "aten.squeeze.dim")
_POOLS = ("scatter", "index_add", "segment", "pool")  # parts of names of operations with a row per graph


@dataclass(frozen=True)
class Factor:
    """A matrix in a sum, or its transpose."""

    value: int
    is_turned: bool = False


@dataclass(frozen=True)
class Term:
    """A part of a gradient: a product of matrices, or a sum of rows.

    Attributes:
        left: First factor. [num_left, num_rows]; None for a sum of rows
        right: Second factor. [num_rows, num_right]
    """

    left: Factor | None
    right: Factor


def sums_by_graph(graph: OpGraph, gradients: Iterable[int], is_padded: bool) -> OpGraph:
    """Return the graph with gradients as trees over the graphs of the batch, where this is possible.

    The graph of each row is known for the rows of an argument `batch`, for the edges of an argument `edge_index`, and
    for rows that are pooled by `batch`. Other gradients stay chains: those with rows of other kinds, of a table, or
    with arithmetic after the sum.

    Args:
        graph: The result of `sums_in_order`.
        gradients: Positions of the gradients among the outputs.
        is_padded: Whether the last node is padding, so that its graph is not real.
    """
    axes = _Axes.of(graph)
    if axes is None:
        return graph
    return _Rewriting(graph, axes, is_padded).result([graph.outputs[position] for position in gradients])


@dataclass(frozen=True)
class _Axes:
    """The values that tell the graph of a row.

    Attributes:
        batch: Graph of each node.
        edge_index: Ends of each edge; None if the graph has no such argument.
        num_graphs: Rows of pooled values; None if nothing is pooled.
    """

    batch: int
    edge_index: int | None
    num_graphs: int | None

    @classmethod
    def of(cls, graph: OpGraph) -> "_Axes | None":
        """Find the arguments by name; None without a vector `batch`."""
        named = {one.name.rpartition(".")[2]: v for one, v in graph.inputs_of(Role.ARGUMENT).items()}
        batch, edge_index = named.get("batch"), named.get("edge_index")
        whole = [v for v in (batch, edge_index) if v is not None and graph.values[v].dtype is not torch.int64]
        if batch is None or whole or len(graph.values[batch].shape) != 1:
            return None
        storage = graph.values[batch].storage
        pools = [op for op in graph.ops if any(name in op.target for name in _POOLS)]
        pools = [op for op in pools if any(graph.values[v].storage == storage for v in op.reads())]
        rows = {graph.values[v].shape[0] for op in pools for v in op.makes() if graph.values[v].shape}
        rows -= {graph.values[batch].shape[0]}
        return cls(batch, edge_index, rows.pop() if len(rows) == 1 else None)


@dataclass
class _Rewriting:
    """One pass over the gradients of a graph, which collects new values and operations."""

    graph: OpGraph
    axes: _Axes
    is_padded: bool
    values: ValueList = field(init=False)
    ops: dict[int, list[Op]] = field(default_factory=dict)  # new operations, before the operation of this number

    def __post_init__(self) -> None:
        self.values, self.uses = ValueList(self.graph.values), DefUse(self.graph)
        self.constants = dict(self.graph.constants)
        self._known = dict[tuple[str, int, int], int]()

    def result(self, gradients: Sequence[int | None]) -> OpGraph:
        replaced: dict[int, Op] = {}
        for v in gradients:
            index = None if v is None else self.graph.values[v].producer
            if v is None or index is None or index in replaced or not self.uses.is_stable(v):
                continue
            op = self.graph.ops[index]
            terms = self._terms(v) if self.graph.values[v].dtype.is_floating_point else None
            if terms and len(op.outputs) == 1 and (made := self._sum(v, index, terms)) is not None:
                replaced[index] = made
        if not replaced:
            return self.graph
        ops = [one for i, op in enumerate(self.graph.ops) for one in (*self.ops.get(i, ()), replaced.get(i, op))]
        first = self.ops.get(-1, [])
        return drop_unused(with_ops(self.graph, [*first, *ops], self.graph.outputs, self.constants, self.values))

    def _terms(self, v: int, is_turned: bool = False) -> list[Term] | None:
        """Return the terms whose sum is a value, or its transpose; None if it is not a sum of such terms."""
        graph, producer = self.graph, self.graph.values[v].producer
        if producer is None or not self.uses.is_stable(v):
            return None
        op = graph.ops[producer]
        if op.target in _SAME and _flat(graph.values[ref(op.args[0])].shape) == _flat(graph.values[v].shape):
            return self._terms(ref(op.args[0]), is_turned)
        if op.target in ("aten.t.default", "aten.clone.default"):
            return self._terms(ref(op.args[0]), is_turned ^ (op.target == "aten.t.default"))
        if op.target == "aten.add.Tensor" and not op.kwargs and len(op.args) == 2:
            parts = [self._terms(ref(arg), is_turned) for arg in op.args if isinstance(arg, Ref)]
            shapes = {_flat(graph.values[part].shape) for part in (v, *op.reads())}
            return [*parts[0], *parts[1]] if len(parts) == 2 and all(parts) and len(shapes) == 1 else None  # type: ignore[misc]
        if op.target == PRODUCT and op.args[0] is None and op.args[3] and len(graph.values[v].shape) == 2:
            left, right = (Factor(ref(arg), is_turned) for arg in op.args[1:3])
            return [Term(right, left) if is_turned else Term(left, right)]
        if op.target == ROW_SUM and op.args[1] == 0 and not is_turned and is_dense(graph.values[ref(op.args[0])]):
            return [Term(None, Factor(ref(op.args[0])))]
        if op.target == _EMBEDDING and op.args[2] <= _MOST_CLASSES and not op.args[4]:
            left, right = Factor(self._classes(producer, op), True), Factor(ref(op.args[0]))
            return [Term(Factor(right.value, True), Factor(left.value)) if is_turned else Term(left, right)]
        return None

    def _classes(self, index: int, op: Op) -> int:
        """Return the matrix of ones where a row has a class, for the gradient of an embedding."""
        rows, num_classes, padding = self.values[ref(op.args[1])], op.args[2], op.args[3]
        classes = torch.arange(num_classes).view(1, -1)
        if padding >= 0:
            classes[0, padding] = -1  # its row stays zero
        known = self.values.new(classes.shape, torch.int64)
        self.constants[known] = classes
        shown = self.values.add(replace(rows, shape=(*rows.shape, 1), stride=(*rows.stride, 1), producer=None))
        shape = (rows.shape[0], num_classes)
        same, made = (self.values.new(shape, dtype) for dtype in (torch.bool, self.values[op.makes()[0]].dtype))
        options = {"dtype": self.values[made].dtype}
        self.ops.setdefault(index, []).extend([
            replace(op, target="aten.unsqueeze.default", args=(op.args[1], 1), kwargs={}, outputs=(shown,)),
            replace(op, target="aten.eq.Tensor", args=(Ref(shown), Ref(known)), kwargs={}, outputs=(same,)),
            replace(op, target="aten._to_copy.default", args=(Ref(same),), kwargs=options, outputs=(made,)),
        ])  # fmt: skip
        return made

    def _sum(self, v: int, index: int, terms: Sequence[Term]) -> Op | None:
        """Return the operation that makes a gradient; None if the graph of some row is not known."""
        rows = [self._rows(term.right) for term in terms]
        if None in rows:
            return None
        value, is_own = self.values[v], not self.graph.is_view(self.graph.ops[index])
        storage = value.storage if is_own else self.values.new_storage()
        self.values[v] = dense_value(value.shape, value.dtype, storage)
        factors = [(term.left, term.right) for term in terms]
        parts = [[None if one is None else (Ref(one.value), one.is_turned) for one in pair] for pair in factors]
        args = (parts, [Ref(one) for one in rows if one is not None])
        return replace(self.graph.ops[index], target=GRAPH_SUM, args=args, kwargs={}, outputs=(v,), writes=())

    def _rows(self, right: Factor) -> int | None:
        """Return the value with the first row of each graph in a factor; None if it is not known."""
        axes, count = self.axes, next(self._lengths(right))
        num_nodes = self.values[axes.batch].shape[0]
        num_edges = None if axes.edge_index is None else self.values[axes.edge_index].shape[-1]
        lengths = {"node": num_nodes, "edge": num_edges, "graph": axes.num_graphs}
        for length in self._lengths(right):
            kinds = [kind for kind, known in lengths.items() if known == length]
            kinds += ["graph"] if not kinds and axes.num_graphs == length + 1 else []
            if length and len(kinds) == 1 and count % length == 0:
                return self._first_rows(kinds[0], count, count // length)
        return None

    def _lengths(self, factor: Factor) -> Iterator[int]:
        """Yield the rows of a factor, and of the value that it shows: three times as many for vectors of nodes."""
        values = self.values
        yield values[factor.value].shape[1 if factor.is_turned else 0]
        if factor.value >= len(self.graph.values):
            return
        base = self.uses.untransposed(factor.value) if factor.is_turned else factor.value
        shown = None if base is None else self.uses.shown(base)
        if shown is not None and values[shown].shape:
            yield values[shown].shape[0]

    def _first_rows(self, kind: str, count: int, each: int) -> int:
        """Return the value with the first row of each graph, for rows of a kind; it is computed once."""
        key = kind, count, each
        if key not in self._known:
            batch, first = self.axes.batch, self.ops.setdefault(-1, [])
            ids: Ref | None = Ref(batch) if kind == "node" else None
            if kind == "edge" and self.axes.edge_index is not None:
                whole = self.values[self.axes.edge_index]
                ends = self.values.add(replace(whole, shape=whole.shape[1:], stride=whole.stride[1:], producer=None))
                edges = Ref(self.axes.edge_index)
                first.append(Op(target="aten.select.int", args=(edges, 0, 0), outputs=(ends,)))
                found = self.values.new(whole.shape[1:], torch.int64)
                first.append(Op(target="aten.index_select.default", args=(Ref(batch), 0, Ref(ends)), outputs=(found,)))
                ids = Ref(found)
            size = (self.values[batch].shape[0] + 2,)
            self._known[key] = made = self.values.new(size, torch.int64)
            args = (ids, Ref(batch), count, each, self.is_padded)
            first.append(Op(target=GRAPH_ROWS, args=args, outputs=(made,)))
        return self._known[key]


def _flat(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without leading dimensions of size 1."""
    sizes = list(shape)
    while len(sizes) > 1 and sizes[0] == 1:
        del sizes[0]
    return tuple(sizes)

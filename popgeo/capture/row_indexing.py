"""Gathers and scatter-adds of rows in their cheapest form, and back; those with the same index become one."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value
from popgeo.capture.operations import Out, operation_of
from popgeo.capture.passes import with_ops

GATHER, SCATTER = "aten.index_select.default", "aten.index_add.default"


def use_row_indexing(graph: OpGraph) -> tuple[OpGraph, frozenset[Input]]:
    """Replaces `x[index]` by `index_select` and its gradient by `index_add`, where one index picks rows.

    Only indices that are part of an input are looked at, because the results are the same, bit by bit, as long as none
    is negative.

    Returns:
        The graph, and the inputs to check at each run.
    """
    arguments = {graph.values[v].storage: given for given, v in graph.inputs_of(Role.ARGUMENT).items()}
    relied_on: set[Input] = set()
    ops = []
    for op in graph.ops:
        form = _row_form(graph, op)
        if form is not None and op.target != "aten.embedding.default":
            given = arguments.get(graph.values[op.args[1][0].value].storage)
            if given is None or graph.values[graph.inputs[given]].storage in graph.mutated_storages():
                form = None
            else:
                relied_on.add(given)
        ops.append(form or op)
    return with_ops(graph, ops, graph.outputs), frozenset(relied_on)


def without_row_indexing(graph: OpGraph, relied_on: frozenset[Input]) -> OpGraph:
    """The graph in the form that also takes negative indices in these inputs."""
    storages = {graph.values[graph.inputs[given]].storage for given in relied_on}
    ops = []
    for op in graph.ops:
        indexed = op.target in (GATHER, SCATTER) and op.args[1] == 0
        if indexed and graph.values[op.args[2].value].storage in storages and op.kwargs.get("alpha", 1) == 1:
            if op.target == GATHER:
                op = dataclasses.replace(op, target="aten.index.Tensor", args=(op.args[0], [op.args[2]]))
            else:
                arguments = (op.args[0], [op.args[2]], op.args[3], True)
                op = dataclasses.replace(op, target="aten.index_put.default", args=arguments, kwargs={})
        ops.append(op)
    return with_ops(graph, ops, graph.outputs)


def _row_form(graph: OpGraph, op: Op) -> Op | None:
    if op.target == "aten.embedding.default" and len(graph.values[op.args[1].value].shape) == 1:
        return dataclasses.replace(op, target=GATHER, args=(op.args[0], 0, op.args[1]), kwargs={})
    if op.target == "aten.index.Tensor" and _picks_rows(graph, op.args[1]):
        return dataclasses.replace(op, target=GATHER, args=(op.args[0], 0, op.args[1][0]))
    accumulates = op.target == "aten.index_put.default" and (*op.args, False)[3] is True
    if accumulates and _picks_rows(graph, op.args[1]):
        into, (index,), rows, _ = op.args
        shape = graph.values[rows.value].shape
        if shape == (graph.values[index.value].shape[0], *graph.values[into.value].shape[1:]):
            return dataclasses.replace(op, target=SCATTER, args=(into, 0, index, rows))
    return None


def _picks_rows(graph: OpGraph, indices: Sequence[Any]) -> bool:
    if len(indices) != 1 or not isinstance(indices[0], Ref):
        return False
    index = graph.values[indices[0].value]
    return len(index.shape) == 1 and index.dtype in (torch.int64, torch.int32)


# A group moves at most so much; laying larger tensors side by side costs more than it saves.
_LARGEST_BYTES = 2**18


def join_gathers(graph: OpGraph) -> OpGraph:
    """Joins gathers, and scatter-adds into zeros, that share an index and do not wait for each other.

    Sources are laid side by side, gathered or added once, and each result is a view of its columns. What is added to a
    row is added in the same order, so values are the same bit by bit.

    Args:
        graph: Gathers as `index_select` and scatter-adds as `index_add`, in single static assignment.
    """
    # A result that is looked at in other ways would need those views moved too; it stays alone.
    views = Counter(value.storage for value in graph.values)
    apart = graph.mutated_storages() | {storage for storage, count in views.items() if count > 1}
    groups: dict[Any, list[int]] = defaultdict(list)
    depends = _dependencies(graph)
    for index, op in enumerate(graph.ops):
        key = _group_key(graph, op, apart)
        if key is None:
            continue
        members = groups[key]
        moved = sum(_moved_bytes(graph, graph.ops[m]) for m in [*members, index])
        if moved <= _LARGEST_BYTES and not any(depends[index] >> m & 1 for m in members):
            members.append(index)
    values = list(graph.values)
    replaced: dict[int, list[Op]] = {}
    for members in groups.values():
        if len(members) > 1 and _may_wait(graph, members):
            joined = _join(graph, [graph.ops[m] for m in members], values)
            replaced |= {m: [] for m in members} | {members[-1]: joined}
    ops = [new for index, op in enumerate(graph.ops) for new in replaced.get(index, [op])]
    return with_ops(graph, ops, graph.outputs, values=values)


def _group_key(graph: OpGraph, op: Op, apart: frozenset[int]) -> Any:
    if op.target not in (GATHER, SCATTER) or op.args[1] != 0 or op.kwargs.get("alpha", 1) != 1:
        return None
    if any(graph.values[v].storage in apart for v in op.makes()) or not _is_unchanged(graph, op):
        return None
    result = graph.values[op.makes()[0]]
    source = graph.values[op.reads()[0 if op.target == GATHER else 2]]
    index = op.args[2]
    if len(result.shape) != 2 or (op.target == SCATTER and not _is_zero(graph, op.args[0])):
        return None
    return op.target, index, result.dtype, result.shape[0], source.shape[0]


def _is_unchanged(graph: OpGraph, op: Op) -> bool:
    """Whether nothing that an operation reads is changed in place, so that it may be read later."""
    mutated = graph.mutated_storages()
    return not any(graph.values[v].storage in mutated for v in op.reads())


def _is_zero(graph: OpGraph, ref: Ref) -> bool:
    if ref.value in graph.constants:
        return not graph.constants[ref.value].any()
    maker = graph.values[ref.value].producer
    return maker is not None and operation_of(graph.ops[maker].target).out is Out.ZEROS


def _moved_bytes(graph: OpGraph, op: Op) -> int:
    return sum(graph.values[v].nbytes for v in (*op.reads(), *op.makes()))


def _dependencies(graph: OpGraph) -> list[int]:
    """For each operation, as bits, the operations that must run before it."""
    before: list[int] = []
    maker: dict[int, int] = {}
    for index, op in enumerate(graph.ops):
        bits = 0
        for v in op.reads():
            if graph.values[v].storage in maker:
                producer = maker[graph.values[v].storage]
                bits |= before[producer] | 1 << producer
        before.append(bits)
        maker |= {graph.values[v].storage: index for v in (*op.makes(), *op.writes)}
    return before


def _may_wait(graph: OpGraph, members: Sequence[int]) -> bool:
    """Whether no result of the group is read before its last member runs."""
    made = {graph.values[v].storage for m in members for v in graph.ops[m].makes()}
    between = range(members[0] + 1, members[-1])
    return not any(graph.values[v].storage in made for i in between if i not in members for v in graph.ops[i].reads())


def _join(graph: OpGraph, ops: Sequence[Op], values: list[Value]) -> list[Op]:
    """Side by side, one gather or scatter-add, and a view of the columns for each."""
    gathers = ops[0].target == GATHER
    sources = [op.args[0 if gathers else 3] for op in ops]
    widths = [graph.values[ref.value].shape[1] for ref in sources]
    last, dtype = ops[-1], graph.values[sources[0].value].dtype

    def new_value(rows: int) -> int:
        storage = 1 + max(value.storage for value in values)
        shape = (rows, sum(widths))
        stride = (shape[1], 1)
        values.append(Value(shape=shape, stride=stride, offset=0, dtype=dtype, storage=storage, producer=None))
        return len(values) - 1

    def new_op(target: str, args: tuple[Any, ...], output: int, kwargs: dict[str, Any] | None = None) -> Op:
        return dataclasses.replace(last, target=target, args=args, kwargs=kwargs or {}, outputs=(output,), writes=())

    side_by_side = new_value(graph.values[sources[0].value].shape[0])
    rows = graph.values[ops[0].makes()[0]].shape[0]
    result = new_value(rows)
    made = [new_op("aten.cat.default", (list(sources), 1), side_by_side)]
    if gathers:
        made.append(new_op(GATHER, (Ref(side_by_side), 0, ops[0].args[2]), result))
    else:
        zeros = new_value(rows)
        made.append(new_op("aten.zeros.default", ([rows, sum(widths)],), zeros, {"dtype": dtype}))
        made.append(new_op(SCATTER, (Ref(zeros), 0, ops[0].args[2], Ref(side_by_side)), result))
    start = 0
    for op, width in zip(ops, widths, strict=True):
        (number,) = op.makes()
        own = values[number]
        made.append(
            dataclasses.replace(op, target="aten.slice.Tensor", args=(Ref(result), 1, start, start + width), kwargs={})
        )
        values[number] = dataclasses.replace(
            own, stride=values[result].stride, offset=start, storage=values[result].storage
        )
        start += width
    return made

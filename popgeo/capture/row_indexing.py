"""Gathers and scatter-adds of rows in their cheapest form, and back."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role
from popgeo.capture.passes import with_ops

GATHER, SCATTER = "aten.index_select.default", "aten.index_add.default"


def use_row_indexing(graph: OpGraph) -> tuple[OpGraph, frozenset[Input]]:
    """Replaces `x[index]` by `index_select` and its gradient by `index_add`, if one index picks rows.

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

"""Operations that read or add rows where an index says so."""

from typing import Any

from popgeo.ipu.codelets.calibration import Machine
from popgeo.ipu.codelets.operands import Rule, made, tensor, width
from popgeo.ipu.codelets.slices import plan_gather, plan_scatter_add
from popgeo.ipu.op_graph import Op, OpGraph, Ref, Value
from popgeo.ipu.plan import Plan


def _gather_rows(table: Value, lookups: int, rows: int, machine: Machine) -> Plan:
    return plan_gather(max(1, rows), max(1, table.numel // max(1, rows)), max(1, lookups), width(table), machine)


def _add_rows(result: Value, rows: int, summands: int, machine: Machine, makes_table: bool = False) -> Plan:
    columns = max(1, result.numel // max(1, rows))
    return plan_scatter_add(max(1, rows), columns, max(1, summands), width(result), machine, makes_table)


def _index_select(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    table, dim = tensor(graph, op.args[0]), op.args[1]
    return _gather_rows(table, tensor(graph, op.args[2]).numel, _size(table, dim), machine)


def _embedding(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    table = tensor(graph, op.args[0])
    return _gather_rows(table, tensor(graph, op.args[1]).numel, table.shape[0], machine)


def _popgeo_gather(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    table, result = tensor(graph, op.args[0]), made(graph, op)[0]
    return _gather_rows(table, result.shape[0], table.shape[0], machine)


def _index(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """`x[i, j, ...]`: the indexed dimensions become one that is looked up in."""
    table = tensor(graph, op.args[0])
    rows, lookups = _indexed(graph, table, op.args[1])
    return _gather_rows(table, lookups, rows, machine)


def _gather(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    table, dim, index = tensor(graph, op.args[0]), op.args[1], tensor(graph, op.args[2])
    if _names_rows(index, dim):
        return plan_gather(
            max(1, _size(table, dim)), max(1, index.numel // _size(index, dim)), max(1, _size(index, dim)),
            width(table), machine,
        )  # fmt: skip
    return plan_gather(max(1, table.numel), 1, max(1, index.numel), width(table), machine)


def _index_add(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    result, dim = tensor(graph, op.args[0]), op.args[1]
    return _add_rows(result, _size(result, dim), tensor(graph, op.args[2]).numel, machine)


def _scatter(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    result, dim, index = tensor(graph, op.args[0]), op.args[1], tensor(graph, op.args[2])
    if _names_rows(index, dim):
        columns = max(1, index.numel // max(1, _size(index, dim)))
        return plan_scatter_add(
            max(1, _size(result, dim)), columns, max(1, _size(index, dim)), width(result), machine
        )  # fmt: skip
    return plan_scatter_add(max(1, result.numel), 1, max(1, index.numel), width(result), machine)


def _index_put(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    result = tensor(graph, op.args[0])
    rows, summands = _indexed(graph, result, op.args[1])
    return _add_rows(result, rows, summands, machine)


def _embedding_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    result = made(graph, op)[0]
    return _add_rows(result, result.shape[0], tensor(graph, op.args[1]).numel, machine, makes_table=True)


def _popgeo_scatter(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    result, source = made(graph, op)[0], tensor(graph, op.args[0])
    return _add_rows(result, result.shape[0], source.shape[0], machine, makes_table=True)


def _indexed(graph: OpGraph, value: Value, indices: Any) -> tuple[int, int]:
    """Places that a list of indices can name, and how many it names."""
    rows = lookups = 1
    for size, index in zip(value.shape, indices, strict=False):
        if isinstance(index, Ref):
            rows, lookups = rows * size, max(lookups, graph.values[index.value].numel)
    return rows, lookups


def _names_rows(index: Value, dim: int) -> bool:
    """Whether an index of many dimensions says the same for all of them but one, as an expanded one does."""
    dim %= max(1, len(index.shape))
    others = [
        (size, stride) for d, (size, stride) in enumerate(zip(index.shape, index.stride, strict=True)) if d != dim
    ]
    return all(size == 1 or stride == 0 for size, stride in others)


def _size(value: Value, dim: int) -> int:
    return value.shape[dim] if value.shape else 1


RULES: dict[str, Rule] = {
    "aten.index_select": _index_select,
    "aten.embedding": _embedding,
    "aten.index": _index,
    "aten._unsafe_index": _index,
    "aten.gather": _gather,
    "aten.index_add": _index_add,
    "aten.index_copy": _index_add,
    "aten.index_reduce": _index_add,
    "aten.scatter_add": _scatter,
    "aten.scatter_reduce": _scatter,
    "aten.scatter": _scatter,
    "aten.index_put": _index_put,
    "aten._index_put_impl": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten.embedding_dense_backward": _embedding_backward,
    "popgeo.gather": _popgeo_gather,
    "popgeo.gather_csr": _popgeo_gather,
    "popgeo.scatter_sum": _popgeo_scatter,
    "popgeo.scatter_mul": _popgeo_scatter,
    "popgeo.scatter_max": _popgeo_scatter,
    "popgeo.scatter_min": _popgeo_scatter,
    "popgeo.segment_sum": _popgeo_scatter,
}

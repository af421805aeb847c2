"""Operations that read or change rows where an index says so."""

from typing import Any

from popgeo.ipu.codelets.calibration import Machine
from popgeo.ipu.codelets.compose import in_sequence
from popgeo.ipu.codelets.elementwise import plan_elementwise
from popgeo.ipu.codelets.gather import plan_gather
from popgeo.ipu.codelets.operands import Rule, made, tensor, width
from popgeo.ipu.codelets.scatter import plan_scatter_add
from popgeo.ipu.op_graph import Op, OpGraph, Ref, Value
from popgeo.ipu.plan import Plan

_REDUCTIONS = {"sum": "add", "add": "add", "mean": "add", "prod": "multiply", "multiply": "multiply"}


def _index_select(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    table, dim = tensor(graph, op.args[0]), op.args[1]
    return _gather_rows(table, _size(table, dim), tensor(graph, op.args[2]).numel, machine)


def _embedding(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    table = tensor(graph, op.args[0])
    return _gather_rows(table, table.shape[0], tensor(graph, op.args[1]).numel, machine)


def _popgeo_gather(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    table, result = tensor(graph, op.args[0]), made(graph, op)[0]
    return _gather_rows(table, table.shape[0], result.shape[0], machine)


def _index(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """`x[i, j, ...]`: the indexed dimensions become one that is looked up in."""
    table = tensor(graph, op.args[0])
    return _gather_rows(table, *_indexed(graph, table, op.args[1]), machine)


def _gather(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    table, dim, index = tensor(graph, op.args[0]), op.args[1], tensor(graph, op.args[2])
    rows, columns, lookups = _named_rows(table, dim, index)
    return plan_gather(rows, columns, lookups, width(table), machine)


def _index_add(graph: OpGraph, op: Op, machine: Machine, operation: str = "add") -> Plan:
    result, dim = tensor(graph, op.args[0]), op.args[1]
    return _change_rows(result, _size(result, dim), tensor(graph, op.args[2]).numel, machine, operation)


def _index_copy(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    return _index_add(graph, op, machine, "write")


def _index_reduce(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    return _index_add(graph, op, machine, _REDUCTIONS.get(str(op.args[4]), "extreme"))


def _scatter_add(graph: OpGraph, op: Op, machine: Machine, operation: str = "add") -> Plan:
    result, dim, index = tensor(graph, op.args[0]), op.args[1], tensor(graph, op.args[2])
    rows, columns, summands = _named_rows(result, dim, index)
    return plan_scatter_add(rows, columns, summands, width(result), machine, operation=operation)


def _scatter(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    return _scatter_add(graph, op, machine, "write")


def _scatter_reduce(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """A mean is a sum, a sum of ones and their quotient."""
    kind = str(op.args[4] if len(op.args) > 4 else op.kwargs.get("reduce", "sum"))
    total = _scatter_add(graph, op, machine, _REDUCTIONS.get(kind, "extreme"))
    if kind != "mean":
        return total
    result, dim, index = tensor(graph, op.args[0]), op.args[1], tensor(graph, op.args[2])
    rows, _, summands = _named_rows(result, dim, index)
    counts = plan_scatter_add(rows, 1, summands, width(result), machine, makes_table=True)
    divide = plan_elementwise("divide", max(1, result.numel), width(result), machine, operand=rows)
    return in_sequence("scatter", [total, counts, divide])


def _index_put(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    result = tensor(graph, op.args[0])
    rows, summands = _indexed(graph, result, op.args[1])
    accumulates = len(op.args) > 3 and bool(op.args[3])
    return _change_rows(result, rows, summands, machine, "add" if accumulates else "write")


def _embedding_backward(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    result = made(graph, op)[0]
    return _change_rows(result, result.shape[0], tensor(graph, op.args[1]).numel, machine, makes_table=True)


def _popgeo_scatter(graph: OpGraph, op: Op, machine: Machine, operation: str = "add") -> Plan:
    result, source = made(graph, op)[0], tensor(graph, op.args[0])
    return _change_rows(result, result.shape[0], source.shape[0], machine, operation, makes_table=True)


def _popgeo_product(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    return _popgeo_scatter(graph, op, machine, "multiply")


def _popgeo_extreme(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """The largest rows, and who they came from: they go back to the edges, and those that match write their number."""
    result, source = made(graph, op)[0], tensor(graph, op.args[0])
    found = _popgeo_scatter(graph, op, machine, "extreme")
    back = _gather_rows(result, result.shape[0], source.shape[0], machine)
    match = plan_elementwise("select", max(1, source.numel), width(source), machine)
    write = _popgeo_scatter(graph, op, machine, "write")
    return in_sequence("scatter", [found, back, match, write])


def _gather_rows(table: Value, rows: int, lookups: int, machine: Machine) -> Plan:
    return plan_gather(rows, table.numel // max(1, rows), lookups, width(table), machine)


def _change_rows(
    result: Value, rows: int, summands: int, machine: Machine, operation: str = "add", makes_table: bool = False
) -> Plan:
    columns = result.numel // max(1, rows)
    return plan_scatter_add(rows, columns, summands, width(result), machine, makes_table, operation)


def _indexed(graph: OpGraph, value: Value, indices: Any) -> tuple[int, int]:
    """Places that a list of indices can name, and how many it names."""
    rows = lookups = 1
    for size, index in zip(value.shape, indices, strict=False):
        if isinstance(index, Ref):
            rows, lookups = rows * size, max(lookups, graph.values[index.value].numel)
    return rows, lookups


def _named_rows(table: Value, dim: int, index: Value) -> tuple[int, int, int]:
    """Rows, columns and lookups of an index of many dimensions; where it differs in all of them, single elements."""
    dim %= max(1, len(index.shape))
    others = [
        (size, stride) for d, (size, stride) in enumerate(zip(index.shape, index.stride, strict=True)) if d != dim
    ]
    if all(size == 1 or stride == 0 for size, stride in others):
        lookups = max(1, _size(index, dim))
        return max(1, _size(table, dim)), max(1, index.numel // lookups), lookups
    return max(1, table.numel), 1, max(1, index.numel)


def _size(value: Value, dim: int) -> int:
    return value.shape[dim] if value.shape else 1


RULES: dict[str, Rule] = {
    "aten.index_select": _index_select,
    "aten.embedding": _embedding,
    "aten.index": _index,
    "aten._unsafe_index": _index,
    "aten.gather": _gather,
    "aten.index_add": _index_add,
    "aten.index_copy": _index_copy,
    "aten.index_reduce": _index_reduce,
    "aten.scatter_add": _scatter_add,
    "aten.scatter_reduce": _scatter_reduce,
    "aten.scatter": _scatter,
    "aten.index_put": _index_put,
    "aten._index_put_impl": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten.embedding_dense_backward": _embedding_backward,
    "popgeo.gather": _popgeo_gather,
    "popgeo.gather_csr": _popgeo_gather,
    "popgeo.scatter_sum": _popgeo_scatter,
    "popgeo.scatter_mul": _popgeo_product,
    "popgeo.scatter_max": _popgeo_extreme,
    "popgeo.scatter_min": _popgeo_extreme,
    "popgeo.segment_sum": _popgeo_scatter,
}

"""Operations that multiply matrices."""

import dataclasses
import math

from popgeo.ipu.codelets.calibration import Machine
from popgeo.ipu.codelets.elementwise import plan_elementwise
from popgeo.ipu.codelets.matmul import plan_matmul
from popgeo.ipu.codelets.operands import Rule, made, tensor, width
from popgeo.ipu.op_graph import Op, OpGraph, Value
from popgeo.ipu.plan import Plan


def _product(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    return _multiply(graph, op, machine, left=0, right=1)


def _product_and_sum(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """beta * bias + alpha * left @ right."""
    product = _multiply(graph, op, machine, left=1, right=2)
    result = made(graph, op)[0] if made(graph, op) else tensor(graph, op.args[0])
    return _then_add(product, result, machine)


def _linear(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    x, weight, result = tensor(graph, op.args[0]), tensor(graph, op.args[1]), made(graph, op)[0]
    rows = math.prod(x.shape[:-1])
    product = plan_matmul(rows, x.shape[-1], weight.shape[0], _width(x), machine)
    has_bias = len(op.args) > 2 and op.args[2] is not None
    return _then_add(product, result, machine) if has_bias else product


def _multiply(graph: OpGraph, op: Op, machine: Machine, left: int, right: int) -> Plan:
    a, b = tensor(graph, op.args[left]), tensor(graph, op.args[right])
    contraction = max(1, a.shape[-1])
    if len(a.shape) <= 2 and len(b.shape) <= 2:
        rows, columns, batch = a.numel // contraction, b.numel // contraction, 1
    else:
        batch = math.prod(a.shape[:-2])
        rows, columns = a.shape[-2], b.shape[-1]
    return plan_matmul(rows, contraction, columns, _width(a), machine, batch)


def _width(value: Value) -> int:
    """Bytes of an element in the matrix unit, which takes two kinds."""
    return 2 if value.dtype.itemsize == 2 else 4


def _then_add(product: Plan, result: Value, machine: Machine) -> Plan:
    columns = result.shape[-1] if result.shape else 1
    bias = plan_elementwise("add", max(1, result.numel), width(result), machine, operand=columns)
    return dataclasses.replace(
        product, supersteps=product.supersteps + bias.supersteps, flops=product.flops + bias.flops
    )


RULES: dict[str, Rule] = {
    "aten.mm": _product,
    "aten.bmm": _product,
    "aten.mv": _product,
    "aten.dot": _product,
    "aten.vdot": _product,
    "aten.matmul": _product,
    "aten.addmm": _product_and_sum,
    "aten.addmv": _product_and_sum,
    "aten.baddbmm": _product_and_sum,
    "aten.linear": _linear,
}

"""The cost of every operation of a captured program on a machine."""

import importlib

from popgeo.capture.control_flow import FOR_LOOP
from popgeo.capture.op_graph import Op, OpGraph
from popgeo.capture.operations import OPERATIONS, UNKNOWN, Operation, name_of
from popgeo.ipu.cost import control
from popgeo.ipu.cost.calibration import BOW_SDK3, Calibration, Machine
from popgeo.ipu.cost.layouts import layout_bytes, with_layout
from popgeo.ipu.cost.operands import Rule, distinct
from popgeo.ipu.cost.plan import OpCost, Plan
from popgeo.ipu.cost.splits import MEMORY_SHARE
from popgeo.ipu.cost.supersteps import compute_step, exchange_step
from popgeo.ipu.target import IpuTarget


def _rule_of(row: Operation) -> Rule:
    """Return the rule of an operation, from the file of its family."""
    return getattr(importlib.import_module(f"{__package__}.{row.file}"), f"rule_{row.rule}")


RULES = {row.name: _rule_of(row) for row in OPERATIONS.values() if row.family not in (UNKNOWN, "control")}


def plan_all(graph: OpGraph, machine: Machine) -> list[Plan]:
    """Plan each operation of a program, in order, including the rows that it rearranges before it begins."""
    plans = []
    for op, nbytes in zip(graph.ops, layout_bytes(graph), strict=True):
        rule = RULES.get(name_of(op.target), plan_unknown)
        plans.append(with_layout(rule(graph, op, machine), nbytes, machine))
    return plans


RULES |= control.rules(plan_all)

CYCLES_PER_ELEMENT = 42.0  # 7 instructions of a worker, on every sixth cycle each, as in integer operations


def plan_unknown(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Plan an operation without a rule, conservatively.

    Every tensor crosses the exchange once, and one worker takes a slow path for each element of the largest tensor.
    """
    values = [graph.values[v] for v in {*op.reads(), *op.makes()}]
    target, tiles = machine.target, machine.num_tiles
    nbytes = -(-sum(value.nbytes for value in values) // tiles)
    elements = -(-max((value.numel for value in values), default=0) // tiles)
    supersteps = (
        exchange_step(
            "bring operands", target, transfer=nbytes / target.exchange_bytes, bytes_in=nbytes, bytes_out=nbytes,
            fragments=len(values), tiles=tiles,
        ),
        compute_step("compute", target, vertex=CYCLES_PER_ELEMENT * elements, tiles=tiles),
    )  # fmt: skip
    return Plan.in_order(UNKNOWN, tiles, supersteps, f"no rule knows {op.target}", nbytes=nbytes)


def cost(
    graph: OpGraph, target: IpuTarget, calibration: Calibration = BOW_SDK3, matmul_proportion: float = MEMORY_SHARE
) -> tuple[OpCost, ...]:
    """Return the plan and the cost of each operation of a graph, in order.

    Args:
        graph: The captured program.
        target: The machine.
        calibration: The constants fitted to measurements.
        matmul_proportion: Share of a tile's memory that a dense product may take while it runs.
    """
    machine = Machine(target=target, calibration=calibration, matmul_proportion=matmul_proportion)
    return tuple(
        OpCost(
            target=op.target,
            phase=op.phase,
            module=op.module,
            source=op.source,
            shapes=" ".join(str(list(graph.values[v].shape)) for v in (*op.reads(), *op.makes())),
            plan=plan,
            known=name_of(op.target) in RULES,
            bytes=_bytes(graph, op),
        )
        for op, plan in zip(graph.ops, plan_all(graph, machine), strict=True)
    )


def _bytes(graph: OpGraph, op: Op) -> int:
    """Return the bytes that an operation reads and writes; a view touches none."""
    if graph.is_view(op):
        return 0
    if op.bodies:
        touched = [sum(_bytes(body, inner) for inner in body.ops) for body in op.bodies]
        return op.args[0] * touched[0] if op.target == FOR_LOOP else max(touched)
    read = sum(distinct(graph.values[v]) * graph.values[v].dtype.itemsize for v in op.reads())
    # An operation in place returns the value that it writes, which counts once.
    return read + sum(graph.values[v].nbytes for v in {*op.makes(), *op.writes})

"""Plans of loops and branches: the operations of their bodies, as often as they run."""

import dataclasses
from collections.abc import Callable, Sequence

from popgeo.capture.op_graph import Op, OpGraph, Value
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import spread
from popgeo.ipu.cost.operands import Rule, made, width
from popgeo.ipu.cost.plan import Plan, Profile
from popgeo.ipu.cost.supersteps import compute_step, in_sequence, repeated

PlanGraph = Callable[[OpGraph, Machine], Sequence[Plan]]
"""The plan of each operation of a graph."""


def rules(plan_graph: PlanGraph) -> dict[str, Rule]:
    """Return the rules of loops and branches, given a function that plans the operations of a body."""

    def for_loop(graph: OpGraph, op: Op, machine: Machine) -> Plan:
        """Plan the turns of a loop: each runs the body and moves its results to the inputs of the next turn."""
        count, (body,) = op.args[0], op.bodies
        plans = [*plan_graph(body, machine), _carry(made(graph, op), machine)]
        turn = in_sequence("control", *plans)
        return dataclasses.replace(
            turn,
            split={"serial": count},
            supersteps=tuple(repeated(step, count) for step in turn.supersteps),
            temporary_bytes=_work_space(body, plans, machine),
            flops=count * turn.flops,
            why=f"{count} turns of the body; " + turn.why,
        )

    def cond(graph: OpGraph, op: Op, machine: Machine) -> Plan:
        """Plan the more expensive branch, and the copy of its results."""
        plans = [plan_graph(body, machine) for body in op.bodies]
        carry = _carry(made(graph, op), machine)
        branches = [in_sequence("control", *branch, carry) for branch in plans]
        costliest = max(branches, key=lambda branch: branch.cycles(Profile.CALIBRATED))
        return dataclasses.replace(
            costliest,
            split={},
            temporary_bytes=max(_work_space(b, p, machine) for b, p in zip(op.bodies, plans, strict=True)),
            parts=tuple(plan for branch in plans for plan in branch),
            why="the more expensive branch counts; " + costliest.why,
        )

    return {"popgeo.for_loop": for_loop, "popgeo.cond": cond}


def _carry(values: Sequence[Value], machine: Machine) -> Plan:
    """Plan the copy of some values; every tile copies its part."""
    target = machine.target
    parts = [(value, *spread(value.numel, width(value), machine.num_tiles)) for value in values]
    nbytes = sum(most * width(value) for value, most, _ in parts)
    tiles = max((used for *_, used in parts), default=1)
    step = compute_step("carry over", target, vertex=target.copy_cycles + nbytes / target.copy_bytes, tiles=tiles)
    return Plan(family="movement", supersteps=(step,), why="no published measurement of a copy")


def _work_space(body: OpGraph, plans: Sequence[Plan], machine: Machine) -> int:
    """Return the peak bytes per tile while a body runs: its values, spread over all tiles, and the plans' work."""
    last = body.last_uses()
    inputs = {body.values[v].storage: (one.name, body.values[v].nbytes) for one, v in body.inputs.items()}
    held = {storage: nbytes for storage, (name, nbytes) in inputs.items() if not name.startswith("outside.")}
    given = inputs.keys() - held.keys()
    most = sum(held.values()) / machine.num_tiles
    for index, (op, plan) in enumerate(zip(body.ops, plans, strict=False)):
        for v in op.makes():
            if body.values[v].storage not in given:
                held.setdefault(body.values[v].storage, body.values[v].nbytes)
        most = max(most, sum(held.values()) / machine.num_tiles + plan.temporary_bytes)
        held = {storage: nbytes for storage, nbytes in held.items() if last.get(storage, 0) > index}
    return round(most)

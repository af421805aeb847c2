"""Lowers loops, as repeats of the steps of their body, and branches, as both bodies and an element-wise choice."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from popgeo.capture.control_flow import COND, FOR_LOOP
from popgeo.capture.op_graph import Op, OpGraph, Ref
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.tiles.lower.builder import Builder, Lowering, Places, Scope, elements_of, flat, region_of, reshaped
from popgeo.ipu.tiles.lower.movement import copy
from popgeo.ipu.tiles.map_tensors import map_storages
from popgeo.ipu.tiles.steps import Operand, Region

AddGraph = Callable[[Builder, OpGraph, Sequence[Plan], Places, str], Places]
"""The function `popgeo.ipu.tiles.graph_program.add_graph`."""


def lowering_of(op: Op, add_graph: AddGraph) -> Lowering:
    """Return the lowering of a loop or a branch, given the function that adds the steps of a graph."""

    def for_loop(scope: Scope, op: Op) -> None:
        """Add a repeat of the body; each pass copies its results to the inputs of the next."""
        count, given, outside = op.args
        body = op.bodies[0]
        own = _own(scope, body, given)
        results = [scope.region(v) for v in op.makes()]
        with scope.builder.repeat(count, "turns of a loop"):
            places = _add(scope, body, scope.plan.parts, own, outside)
            for result, v in zip(results, body.outputs, strict=True):
                copy(scope, result, region_of(body, places, v))
            for place, result in zip(own, results, strict=True):
                copy(scope, place, result)

    def cond(scope: Scope, op: Op) -> None:
        """Add both bodies, and the choice of the results of one of them."""
        condition, *given = op.args
        num_own = [sum(one.name.startswith("given.") for one in body.inputs) for body in op.bodies]
        parts = scope.plan.parts[: len(op.bodies[0].ops)], scope.plan.parts[len(op.bodies[0].ops) :]
        made = []
        for body, operands, n, plans in zip(op.bodies, given, num_own, parts, strict=True):
            places = _add(scope, body, plans, _own(scope, body, operands[:n]), operands[n:])
            made.append([region_of(body, places, v) for v in body.outputs])
        holds = scope.region(condition.value)
        for v, then, other in zip(op.makes(), *made, strict=True):
            _choose(scope, scope.region(v), holds, then, other)

    def _add(
        scope: Scope, body: OpGraph, plans: Sequence[Plan], own: Sequence[Region], outside: Sequence[Ref]
    ) -> Places:
        """Add the steps of a body for its own and its outside inputs."""
        inputs = [body.values[v] for v in body.inputs.values()]
        regions = [*own, *(scope.region(ref.value) for ref in outside)]
        places: Places = {}
        for value, region in zip(inputs, regions, strict=True):
            # A body's input is a whole storage, from its first element on.
            start = int(region.elements.ravel()[0]) - value.offset if region.elements.size else 0
            places[value.storage] = region.variable, start
        return add_graph(scope.builder, body, plans, places, f"body{len(scope.builder.variables)}.")

    return {FOR_LOOP: for_loop, COND: cond}[op.target]


def _own(scope: Scope, body: OpGraph, given: Sequence[Ref]) -> list[Region]:
    """Return memory for a body's changing inputs, with their initial content; it keeps its content between turns."""
    builder, places = scope.builder, []
    for ref, v in zip(given, body.inputs.values(), strict=False):
        value = scope.region(ref.value)
        mapping = map_storages(body, [], builder.num_tiles)[body.values[v].storage]
        name = f"carried#{len(builder.variables)}"
        builder.declare(name, builder.dtype(value), mapping, lasting=True)
        place = Region(variable=name, elements=elements_of(body.values[v]))
        copy(scope, place, value)
        places.append(place)
    return places


def _choose(scope: Scope, out: Region, holds: Region, then: Region, other: Region) -> None:
    """Choose each element from one of two results, by a single element of `holds`."""

    def work(tile: int, where: np.ndarray) -> tuple[list[Region], tuple[Any, ...]]:
        return [reshaped(holds, -1), flat(then, where), flat(other, where)], (Operand(0), Operand(1), Operand(2))

    scope.compute(f"{scope.label}: choose", "aten.where.self", out, work)

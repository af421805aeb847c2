"""The bytes that a compiled step keeps in the memory of each tile over time."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from popgeo.capture.op_graph import OpGraph, Role
from popgeo.ipu.cost.plan import Activity, OpCost
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.map_tensors import Lifetime, lives, map_storages
from popgeo.ipu.tiles.memory_use import MemoryUse, Resident

# No manual has these numbers; they are estimates after public poplar reports. A codelet takes 0.3 to 3 KB, a vertex 16
# to 64 B and 4 B per edge pointer, a superstep 40 to 80 B of control code, the seven stacks 2 to 4 KB.
VERTEX_CODE_BYTES = 1024
VERTEX_STATE_BYTES = 32
EDGE_POINTER_BYTES = 4
CONTROL_CODE_BYTES = 60
STACK_BYTES = 3072
# An instruction of exchange code is a word: three per received piece, one per 64 sent words, eight per exchange.
INSTRUCTION_BYTES = 4
INSTRUCTIONS_PER_PIECE = 3
INSTRUCTIONS_PER_EXCHANGE = 8
BYTES_PER_SEND = 256
NUM_LARGEST = 10
CODE = ("vertex state", "vertex code", "control code", "exchange code")
"""The categories that operations of the same kind share in memory."""


def memory(
    graph: OpGraph,
    costs: Sequence[OpCost],
    target: IpuTarget,
    *,
    update: OpGraph | None = None,
    update_costs: Sequence[OpCost] = (),
    num_results: int | None = None,
    accumulates: bool = False,
    gradient_parts: int = 1,
) -> MemoryUse:
    """Return the bytes of every tile, by category and over time.

    Values live from the operation that makes them to the last operation that needs them or a view of them. Weights,
    constants, optimizer state, inputs and results keep their place, since each run finds or leaves them there.

    Args:
        graph: The captured step.
        costs: Plans of its operations, in order.
        target: The machine.
        update: The captured update of the optimizer, which runs after the step; None for inference.
        update_costs: Plans of the update's operations, in order.
        num_results: Number of the graph's outputs that the host receives; the others are gradients. Default: all.
        accumulates: Whether sums of gradients stay in memory from one micro-batch to the next.
        gradient_parts: Number of parts of the sums of gradients; the update applies one part.

    Returns:
        Bytes per tile; its curve covers the operations of the step, then the update's.

    Example:
        >>> import torch
        >>> from popgeo.capture.capture import bind, capture
        >>> from popgeo.ipu.cost.graph_cost import cost
        >>> graph = capture(torch.relu, bind(torch.relu, torch.ones(64))).graph
        >>> use = memory(graph, cost(graph, IpuTarget.bow()), IpuTarget.bow())
        >>> use.categories["inputs and results"][:3].tolist(), use.fits
        ([256, 256, 0], True)
    """
    tiles = target.all_tiles
    step = lives(graph, map_storages(graph, [cost.plan for cost in costs], tiles), tiles)
    state = graph.state_storages() | {graph.values[v].storage for v in graph.constants}
    host = {graph.values[v].storage for v in graph.inputs_of(Role.ARGUMENT).values()}
    host |= {graph.values[v].storage for v in graph.outputs[:num_results] if v is not None} - state
    resident = {
        "weights and optimizer": [life for storage, life in step.items() if storage in state],
        "inputs and results": [life for storage, life in step.items() if storage in host],
    }
    changing = [life for storage, life in step.items() if storage not in state | host]
    if update is not None:
        after = lives(update, map_storages(update, [cost.plan for cost in update_costs], tiles), tiles)
        roles = {update.values[v].storage: given.role for given, v in update.inputs.items()}
        keeps = (Role.STATE, Role.GRADIENT) if accumulates else (Role.STATE,)
        for storage, life in after.items():
            role = roles.get(storage)
            if role in keeps:
                whole = gradient_parts if role is Role.GRADIENT else 1
                resident["weights and optimizer"].append(dataclasses.replace(life, nbytes=life.nbytes * whole))
            elif role is None:
                moved = dataclasses.replace(life, first=life.first + len(graph.ops), last=life.last + len(graph.ops))
                changing.append(moved)
        end = len(graph.ops) + len(update.ops)
        changing = [dataclasses.replace(life, last=end) if life.last == len(graph.ops) else life for life in changing]
    return _over_time(resident, changing, [*costs, *update_costs], target)


def code_of(costs: Sequence[OpCost], tiles: int) -> dict[str, np.ndarray]:
    """Return the bytes of vertices, their code, control program, exchange code and stacks on each tile.

    A tile has the code of a vertex type once. Operations of the same kind, shapes and plan share vertices, control and
    exchange code: PopART's outlining (on by default) makes functions of repeated layers. Each further use is one call.
    """
    state, control, exchange = (np.zeros(tiles, np.int64) for _ in range(3))
    kinds: dict[str, int] = {}
    outlined = set()
    for cost in costs:
        if not cost.plan.supersteps:
            continue
        control += CONTROL_CODE_BYTES
        alike = cost.target, cost.shapes, tuple(sorted(cost.plan.split.items()))
        if alike in outlined:
            continue
        outlined.add(alike)
        for step in cost.plan.supersteps:
            used = min(max(step.tiles, 1), tiles)
            if step.activity is Activity.COMPUTE:
                state[:used] += VERTEX_STATE_BYTES + EDGE_POINTER_BYTES * cost.shapes.count("[")
                kind = step.name.partition(",")[0]  # the name of a stage follows the comma
                kinds[kind] = max(kinds.get(kind, 0), used)
            elif step.activity is Activity.EXCHANGE:
                # The turns of a loop share their code.
                turns = cost.plan.split.get("serial", 1)
                pieces = -(-(INSTRUCTIONS_PER_PIECE * step.fragments + step.bytes_out // BYTES_PER_SEND + 1) // turns)
                exchange[:used] += INSTRUCTION_BYTES * (pieces + INSTRUCTIONS_PER_EXCHANGE)
            if step.activity is not Activity.SYNC:
                control += CONTROL_CODE_BYTES
    code = np.zeros(tiles, np.int64)
    for used in kinds.values():
        code[:used] += VERTEX_CODE_BYTES
    parts = state, code, control, exchange, np.full(tiles, STACK_BYTES, np.int64)
    return dict(zip((*CODE, "stack"), parts, strict=True))


def _over_time(
    resident: Mapping[str, Sequence[Lifetime]], changing: Sequence[Lifetime], costs: Sequence[OpCost], target: IpuTarget
) -> MemoryUse:
    """Walk over the operations and sum the bytes of live values on each tile.

    Args:
        resident: Values that keep their place, by category.
        changing: Values that share memory, one after the other.
        costs: The operations, in order.
        target: The machine.
    """
    tiles = target.all_tiles
    code, nothing = code_of(costs, tiles), np.zeros(tiles, np.int64)
    values = {name: sum((life.nbytes for life in group), nothing) for name, group in resident.items()}
    always = sum([*values.values(), *code.values()], nothing)
    starts: dict[int, list[Lifetime]] = {}
    ends: dict[int, list[Lifetime]] = {}
    for life in changing:
        starts.setdefault(max(life.first, 0), []).append(life)
        ends.setdefault(life.last, []).append(life)
    alive, peak_values = np.zeros_like(always), np.zeros_like(always)
    curve = np.full(max(len(costs), 1), always.max())
    for index, cost in enumerate(costs):
        for life in starts.get(index, ()):
            alive += life.nbytes
        now = alive + _temporary(cost, tiles)
        np.maximum(peak_values, now, out=peak_values)
        curve[index] = (always + now).max()
        for life in ends.get(index, ()):
            alive -= life.nbytes
    peak_op = int(curve.argmax())
    there = [life for life in changing if max(life.first, 0) <= peak_op <= life.last]
    lives_there = [*(life for group in resident.values() for life in group), *there]
    held = [(life.name, life.nbytes, life.source) for life in lives_there]
    if costs:
        running = costs[peak_op]
        held.append((f"work space of {running.target}", _temporary(running, tiles), running.source))
    held += [(name, nbytes, "") for name, nbytes in code.items()]
    peak_tile = int(sum((nbytes for _, nbytes, _ in held), nothing).argmax())
    items = [Resident(name=name, nbytes=int(nbytes[peak_tile]), source=source) for name, nbytes, source in held]
    return MemoryUse(
        limit=target.memory_per_tile,
        categories={**values, "values": peak_values, **code},
        always_live=always,
        peak=always + peak_values,
        curve=curve,
        peak_tile=peak_tile,
        peak_op=peak_op,
        largest=tuple(sorted((item for item in items if item.nbytes), key=lambda item: -item.nbytes)[:NUM_LARGEST]),
    )


def _temporary(cost: OpCost, tiles: int) -> np.ndarray:
    """Return the bytes of the plan's work space on each tile."""
    used = max((step.tiles for step in cost.plan.supersteps), default=tiles) or tiles
    space = np.zeros(tiles, np.int64)
    space[:used] = cost.plan.temporary_bytes
    return space

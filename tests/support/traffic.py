"""How many bytes the tiles exchange: exact, from the same lowering that makes programs, without keeping its lists."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.ipu.cost.account import is_view
from popgeo.ipu.cost.plan import OpCost, Plan
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.graph_program import declare
from popgeo.ipu.tiles.lower.builder import Builder, Scope
from popgeo.ipu.tiles.lower.families import lower
from popgeo.ipu.tiles.map_tensors import map_storages
from popgeo.ipu.tiles.program import Vertex


@dataclass(frozen=True, kw_only=True, eq=False)
class Traffic:
    """Bytes that tiles exchange in one run of a captured program.

    Attributes:
        bytes_in: What each tile receives for each operation. int64[ops, tiles]
        bytes_out: What each tile sends for each operation; what several tiles receive at once counts once.
            int64[ops, tiles]
        between: What each tile receives from each other over all operations. int64[senders, receivers]
    """

    bytes_in: np.ndarray
    bytes_out: np.ndarray
    between: np.ndarray


def traffic(graph: OpGraph, costs: Sequence[OpCost], target: IpuTarget) -> Traffic:
    """The exchange of every operation, tile by tile.

    Operations of the same kind, shapes, places and plan are looked at once. It takes a few seconds for a large step.

    Args:
        graph: The captured program.
        costs: The plan of each operation, in order.
        target: The machine.

    Example:
        >>> from dataclasses import replace
        >>> import torch
        >>> from popgeo.capture.capture import bind, capture
        >>> from popgeo.ipu.cost.graph_cost import cost
        >>> small = replace(IpuTarget.bow(), num_tiles=4)
        >>> graph = capture(torch.sum, bind(torch.sum, torch.ones(64))).graph
        >>> traffic(graph, cost(graph, small), small).between.tolist()
        [[0, 0, 0, 0], [4, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    """
    tiles = target.num_tiles * target.num_ipus
    mappings = map_storages(graph, costs, target)
    places = {s: (mapping.starts.tobytes(), mapping.tiles.tobytes()) for s, mapping in mappings.items()}
    alike: dict[Any, list[int]] = {}
    for index, (op, cost) in enumerate(zip(graph.ops, costs, strict=True)):
        if not is_view(graph, op):
            alike.setdefault(_kind(graph, op, cost.plan, places), []).append(index)
    bytes_in, bytes_out = (np.zeros((len(graph.ops), tiles), np.int64) for _ in range(2))
    between = np.zeros((tiles, tiles), np.int64)
    for members in alike.values():
        counter = _Counter(tiles)
        named = declare(counter.builder, graph, {s: mappings[s] for s in _storages(graph, members[0])}, "s")
        lower(Scope(counter.builder, graph, named, "", costs[members[0]].plan), graph.ops[members[0]])
        bytes_in[members] = counter.received.sum(1)
        bytes_out[members] = counter.sent
        between += len(members) * counter.received.T
    return Traffic(bytes_in=bytes_in, bytes_out=bytes_out, between=between)


class _Counter:
    """Adds up what the compute sets of an operation must be sent."""

    def __init__(self, num_tiles: int) -> None:
        self.builder = Builder(num_tiles, self._count)
        self.received = np.zeros((num_tiles, num_tiles), np.int64)  # by receiver, then sender
        self.sent = np.zeros(num_tiles, np.int64)

    def _count(self, name: str, vertices: Iterable[Vertex]) -> None:
        builder = self.builder
        wanted: dict[str, np.ndarray] = {}
        by_tile: dict[int, dict[str, list[np.ndarray]]] = {}
        for vertex in vertices:
            for region in vertex.reads:
                if not builder.variables[region.variable].mapping.replicated:
                    by_tile.setdefault(vertex.tile, {}).setdefault(region.variable, []).append(region.elements.ravel())
        for tile, regions in by_tile.items():
            for variable, parts in regions.items():
                holders = builder.holders_of(variable)
                elements = parts[0] if len(parts) == 1 else np.concatenate(parts)
                if not (elements[1:] > elements[:-1]).all():
                    elements = np.sort(elements)
                    elements = elements[np.append(True, elements[1:] != elements[:-1])]
                at = holders[elements]
                absent = at != tile
                if absent.any():
                    width = builder.variables[variable].dtype.itemsize
                    self.received[tile] += width * np.bincount(at[absent], minlength=builder.num_tiles)
                    if variable not in wanted:
                        wanted[variable] = np.zeros(len(holders), bool)
                    wanted[variable][elements[absent]] = True
        for variable, elsewhere in wanted.items():
            width = builder.variables[variable].dtype.itemsize
            counts = np.bincount(builder.holders_of(variable)[elsewhere], minlength=builder.num_tiles)
            self.sent += width * counts


def _kind(graph: OpGraph, op: Op, plan: Plan, places: dict[int, Any]) -> Any:
    """What two operations have in common that move the same between the same tiles."""
    values = [graph.values[v] for v in (*op.reads(), *(v for v in op.outputs if v is not None))]
    shapes = [(v.shape, v.stride, v.offset, v.dtype, places[v.storage]) for v in values]
    order = {v: k for k, v in enumerate(dict.fromkeys(v.storage for v in values))}
    same = [order[v.storage] for v in values]
    plain = [arg for arg in (*op.args, *op.kwargs.items()) if isinstance(arg, int | float | bool)]
    return op.target, repr(plain), repr(sorted(plan.split.items())), tuple(map(repr, same)), tuple(shapes)


def _storages(graph: OpGraph, index: int) -> list[int]:
    op = graph.ops[index]
    return list(
        dict.fromkeys(graph.values[v].storage for v in (*op.reads(), *(v for v in op.outputs if v is not None)))
    )

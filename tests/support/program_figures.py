"""The cost of a program's steps by the actual sizes of vertices and transfers, for comparison with a plan."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from popgeo.ipu.cost.loops import LOOP_OF, LOOPS, elementwise_vertex
from popgeo.ipu.cost.reduce import reduce_vertex
from popgeo.ipu.cost.vertex_cycles import add_partials, add_rows, amp_vertex, ceil_div, fill, slice_rows
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.steps import ComputeSet, Exchange, Variable, Vertex

MACHINE_WORD = 4  # bytes; the machine has no wider numbers
BY_ELEMENT = {"aten.add.Tensor": "add", "aten.mul.Tensor": "multiply", "aten.exp.default": "exp"}


@dataclass(frozen=True, kw_only=True)
class Done:
    """A compute set of a program, with the exchange before it.

    Attributes:
        name: Name of the compute set.
        cycles: Cycles of the busiest tile's vertices; None if a vertex runs a whole operation of torch.
        bytes_in: Largest number of bytes that a tile receives.
        bytes_total: Bytes that all tiles receive.
        tiles: Number of tiles with a vertex.
    """

    name: str
    cycles: float | None
    bytes_in: int
    bytes_total: int
    tiles: int


def figures(program: Program, target: IpuTarget) -> list[Done]:
    """Return the compute sets of a program without loops, in order."""
    found, received = [], np.zeros(program.num_tiles, np.int64)
    for step in program.steps:
        if isinstance(step, Exchange):
            for transfer in step.transfers:
                width = min(MACHINE_WORD, program.variables[transfer.variable].dtype.itemsize)
                received[transfer.destination] += width * len(transfer.elements)
        elif isinstance(step, ComputeSet):
            busy: dict[int, float] = {}
            known = True
            for vertex in step.vertices:
                cycles = vertex_cycles(step.name, vertex, program.variables, target)
                known = known and cycles is not None
                busy[vertex.tile] = busy.get(vertex.tile, 0) + (cycles or 0)
            found.append(
                Done(
                    name=step.name.partition(": ")[2],
                    cycles=max(busy.values()) if known else None,
                    bytes_in=int(received.max()),
                    bytes_total=int(received.sum()),
                    tiles=len(busy),
                )
            )
            received = np.zeros(program.num_tiles, np.int64)
    return found


def vertex_cycles(step: str, vertex: Vertex, variables: Mapping[str, Variable], target: IpuTarget) -> float | None:
    """Return the cycles of a vertex from its shapes; None for a whole operation of torch."""
    (out, *_), shapes = vertex.writes, [region.elements.shape for region in vertex.reads]
    assert out is not None
    width = min(MACHINE_WORD, variables[out.variable].dtype.itemsize)
    vector, workers, made = target.vector_bytes // width, target.workers_per_tile, out.elements.size
    if vertex.operation == "slice rows":
        rows, columns = shapes[0]
        return slice_rows(shapes[1][0], rows, vertex.arguments[3], columns, workers)
    if vertex.operation == "update rows":
        (lookups, columns), height, num_rows = shapes[0], *vertex.arguments[4:6]
        return fill(height * columns, vector) + add_rows(lookups, height, num_rows, columns, workers)
    if vertex.operation == "select block":
        columns = len(np.unique(out.elements)) // len(np.unique(vertex.reads[1].elements))
        return slice_rows(made // columns, 1, 1, columns, workers)
    if vertex.operation == "aten.mm.default":
        (rows, inner), (_, columns) = shapes
        # The transposed product is computed if it is faster.
        return min(amp_vertex(a, inner, b, width, target) for a, b in ((rows, columns), (columns, rows)))
    if vertex.operation == "reduce" and step.endswith("add partial sums"):
        return add_partials(made, ceil_div(shapes[0][0], made), vector)
    if vertex.operation == "reduce" and step.endswith("add shards"):
        return (shapes[0][0] // made - 1) * elementwise_vertex(made, LOOPS["add"], width, target)
    if vertex.operation == "reduce":
        return reduce_vertex(made, ceil_div(shapes[0][0], made), width, target)
    if vertex.operation == "fill":
        return fill(made, vector)
    if vertex.operation == "assemble":
        return target.copy_cycles + made * width / target.copy_bytes
    if vertex.operation in BY_ELEMENT:
        return elementwise_vertex(made, LOOPS[LOOP_OF[BY_ELEMENT[vertex.operation]]], width, target)
    return None

"""Collects the steps of a program; exchanges follow from the reads of vertices and the mappings of variables."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from popgeo.capture.op_graph import Op, OpGraph, Value
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.tiles.steps import ComputeSet, Exchange, Region, Repeat, Step, Transfer, Variable, Vertex
from popgeo.ipu.tiles.tile_mapping import TileMapping, from_holders

Lowering = Callable[["Scope", Op], None]
"""Adds the steps of an operation to the builder of a scope."""
Places = dict[int, tuple[str, int]]
"""The variable of each storage, and the element of the variable at which the storage starts."""
GraphWork = Callable[[int, np.ndarray], tuple[Sequence[Region], tuple[Any, ...]]]
"""A function from a tile and positions of a result to the regions and arguments of the vertex that makes them."""


class Builder:
    """A collector of variables and steps.

    Args:
        num_tiles: Number of tiles of the machine.

    Attributes:
        constants: Content of variables before the first step, flat.
        numbers: Name of the variable of the numbers that the host gives at each run; every tile has a copy.
    """

    def __init__(self, num_tiles: int) -> None:
        self.num_tiles = num_tiles
        self.variables: dict[str, Variable] = {}
        self.steps: list[Step] = []
        self.fallbacks: list[str] = []
        self.numbers = ""
        self.constants: dict[str, torch.Tensor] = {}
        self._holders: dict[str, np.ndarray] = {}

    def declare(self, name: str, dtype: torch.dtype, mapping: TileMapping, lasting: bool = False) -> Region:
        """Declare a variable with a mapping, and return it as a flat region."""
        assert name not in self.variables, name
        self.variables[name] = Variable(name=name, dtype=dtype, mapping=mapping, lasting=lasting)
        if not mapping.replicated:
            self._holders[name] = mapping.holders()
        return Region(variable=name, elements=np.arange(mapping.numel))

    def partial(self, label: str, dtype: torch.dtype, holders: np.ndarray) -> Region:
        """Declare a partial result with element [i, j, ...] on tile `holders[i, j, ...]`."""
        whole = self.declare(f"{label}#{len(self.variables)}", dtype, from_holders(holders.ravel()))
        return reshaped(whole, *holders.shape)

    def dtype(self, region: Region) -> torch.dtype:
        """Return the type of a region's elements."""
        return self.variables[region.variable].dtype

    def holders(self, region: Region) -> np.ndarray:
        """Return the tile of each element of a region."""
        return self._holders[region.variable][region.elements]

    @contextlib.contextmanager
    def repeat(self, count: int, name: str) -> Iterator[None]:
        """Collect the steps of a `with` block as the body of a repeat."""
        outside, self.steps = self.steps, []
        yield
        outside.append(Repeat(count=count, name=name, body=tuple(self.steps)))
        self.steps = outside

    def compute(self, name: str, vertices: Iterable[Vertex]) -> None:
        """Add a compute set, and before it an exchange of the elements that its tiles read but do not hold."""
        made = tuple(vertices)
        transfers = tuple(self._transfers(made))
        if transfers:
            self.steps.append(Exchange(name=f"for {name}", transfers=transfers))
        if made:
            self.steps.append(ComputeSet(name=name, vertices=made))

    def _transfers(self, vertices: Sequence[Vertex]) -> Iterator[Transfer]:
        """Yield the transfers that the vertices need."""
        needed: dict[tuple[str, int], list[np.ndarray]] = {}
        for vertex in vertices:
            for region in vertex.reads:
                if not self.variables[region.variable].mapping.replicated:
                    needed.setdefault((region.variable, vertex.tile), []).append(region.elements.ravel())
        for (variable, tile), parts in needed.items():
            elements = np.unique(np.concatenate(parts))
            holders = self._holders[variable][elements]
            absent = holders != tile
            elements = elements[absent]
            for source, where in grouped(holders[absent]):
                yield Transfer(variable=variable, source=source, destination=tile, elements=elements[where])


def grouped(labels: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each label with its positions in ascending order.

    Example:
        >>> [(label, where.tolist()) for label, where in grouped(np.array([2, 0, 2]))]
        [(0, [1]), (2, [0, 2])]
    """
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    for where in np.split(order, cuts):
        if len(where):
            yield int(labels[where[0]]), where


class Scope:
    """The scope of an operation that is lowered: its values as regions, its plan, and the builder.

    Args:
        builder: The builder that collects the steps.
        graph: The graph of the operation.
        places: Place of each storage.
        label: Prefix of the names of partial results and compute sets.
        plan: Division of the operation.
    """

    def __init__(self, builder: Builder, graph: OpGraph, places: Places, label: str, plan: Plan) -> None:
        self.builder, self.graph, self.label, self.plan = builder, graph, label, plan
        self._places = places

    def region(self, v: int | None) -> Region:
        """Return a value's elements in its variable, in the value's shape."""
        return region_of(self.graph, self._places, v)

    def partials(self, out: Region | None, dtype: torch.dtype, holders: np.ndarray) -> Region:
        """Return a region of parts on tiles [parts, ...]; `out` itself if it is the only part and on these tiles."""
        if out is not None and len(holders) == 1 and (self.builder.holders(out) == holders[0]).all():
            return Region(variable=out.variable, elements=out.elements[None])
        return self.builder.partial(self.label, dtype, holders)

    def compute(
        self, name: str, operation: str, out: Region, work: GraphWork, keywords: Mapping[str, Any] | None = None
    ) -> None:
        """Add a compute set; each tile makes the elements of a result that it holds.

        Args:
            name: Name of the compute set.
            operation: Operation of each vertex.
            out: Region to write.
            work: Function that returns the reads and arguments of a vertex, from its tile and its positions in `out`.
            keywords: Keyword arguments of the operation.
        """
        vertices, named = [], keywords or {}
        for tile, where in grouped(self.builder.holders(out).ravel()):
            (given, own), here = work(tile, where), (flat(out, where),)
            reads = tuple(given)
            made = Vertex(tile=tile, operation=operation, reads=reads, writes=here, arguments=own, keywords=named)
            vertices.append(made)
        self.builder.compute(name, vertices)


def region_of(graph: OpGraph, places: Places, v: int | None) -> Region:
    """Return the region of a value of a graph, from the places of its storages."""
    assert v is not None
    value = graph.values[v]
    variable, start = places[value.storage]
    return Region(variable=variable, elements=np.asarray(start + elements_of(value)))


def elements_of(value: Value) -> np.ndarray:
    """Return the position of each element of a value in its storage. int64[value's shape].

    Example:
        >>> kind = dict(dtype=torch.float32, storage=0, producer=None)
        >>> elements_of(Value(shape=(2, 3), stride=(1, 2), offset=4, **kind)).tolist()
        [[4, 6, 8], [5, 7, 9]]
    """
    elements = np.full(value.shape, value.offset, dtype=np.int64)
    for dimension, (size, step) in enumerate(zip(value.shape, value.stride, strict=True)):
        along = np.arange(size, dtype=np.int64) * step
        elements += along.reshape([-1 if d == dimension else 1 for d in range(len(value.shape))])
    return elements


def in_storage_order(tensor: torch.Tensor, value: Value, numel: int) -> torch.Tensor:
    """Return a value's elements in the order of its storage of `numel` elements, with zeros between them."""
    storage = torch.zeros(numel, dtype=value.dtype)
    storage[torch.from_numpy(elements_of(value).ravel())] = tensor.detach().reshape(-1)
    return storage


def part(region: Region, *where: object) -> Region:
    """Return a part of a region, indexed as a numpy array."""
    return Region(variable=region.variable, elements=region.elements[where])  # type: ignore[index]


def reshaped(region: Region, *shape: int) -> Region:
    """Return a region in another shape."""
    return Region(variable=region.variable, elements=region.elements.reshape(shape))


def flat(region: Region, positions: np.ndarray) -> Region:
    """Return the elements at positions in row-major order."""
    return Region(variable=region.variable, elements=region.elements.ravel()[positions])


def cuts(size: int, parts: int) -> list[slice]:
    """Return the parts of a dimension, as equal as possible; the last may be smaller, and there is at least one.

    Example:
        >>> cuts(5, 2)
        [slice(0, 3, None), slice(3, 5, None)]
    """
    step = max(1, -(-size // max(parts, 1)))
    return [slice(start, min(start + step, size)) for start in range(0, max(size, 1), step)]

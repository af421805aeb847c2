"""Collects the steps of a program; exchanges follow from the reads of vertices and the places of variables."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from popgeo.capture.op_graph import Op, OpGraph, Value
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.tiles.steps import ComputeSet, Exchange, Region, Repeat, Step, Sync, Transfer, Variable, Vertex
from popgeo.ipu.tiles.tile_mapping import TileMapping, from_holders

Lowering = Callable[["Scope", Op], None]
"""Adds the steps of an operation to the builder of a scope."""
Places = dict[int, tuple[str, int]]
"""For each storage its variable, and the element of the variable at which the storage starts."""
GraphWork = Callable[[int, np.ndarray], tuple[Sequence[Region], tuple[Any, ...]]]
"""What a vertex reads, and its arguments, for a tile and the positions of a result that it makes."""


class Builder:
    """Steps in the making.

    Args:
        num_tiles: Tiles of the machine.

    Attributes:
        constants: What variables hold from the start, flat.
        numbers: The variable of numbers that are given again at each run, which every tile has a copy of.
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
        """A variable of a known place, as one flat region."""
        assert name not in self.variables, name
        self.variables[name] = Variable(name=name, dtype=dtype, mapping=mapping, lasting=lasting)
        if not mapping.replicated:
            self._holders[name] = mapping.holders()
        return Region(variable=name, elements=np.arange(mapping.numel))

    def partial(self, label: str, dtype: torch.dtype, holders: np.ndarray) -> Region:
        """A partial result whose element [i, j, ...] lies on tile `holders[i, j, ...]`."""
        whole = self.declare(f"{label}#{len(self.variables)}", dtype, from_holders(holders.ravel()))
        return reshaped(whole, *holders.shape)

    def dtype(self, region: Region) -> torch.dtype:
        """Type of a region's elements."""
        return self.variables[region.variable].dtype

    def holders(self, region: Region) -> np.ndarray:
        """The tile of each element of a region."""
        return self._holders[region.variable][region.elements]

    @contextlib.contextmanager
    def repeat(self, count: int, name: str) -> Iterator[None]:
        """What is added meanwhile becomes the body of a repeat."""
        outside, self.steps = self.steps, []
        yield
        outside.append(Repeat(count=count, name=name, body=tuple(self.steps)))
        self.steps = outside

    def compute(self, name: str, vertices: Iterable[Vertex]) -> None:
        """A compute set, after the exchange that brings what its vertices read and do not hold."""
        made = tuple(vertices)
        transfers = tuple(self._transfers(made))
        if transfers:
            self.steps += [Sync(), Exchange(name=f"for {name}", transfers=transfers)]
        if made:
            self.steps.append(ComputeSet(name=name, vertices=made))

    def _transfers(self, vertices: Sequence[Vertex]) -> Iterator[Transfer]:
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
    """Each label with the ascending positions at which it stands.

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
    """An operation that is being lowered: its values as regions, its plan, and the builder.

    Args:
        builder: Takes the steps.
        graph: The program that the operation is of.
        places: For each storage its variable and the element of it at which the storage starts.
        label: How partial results are named.
        plan: The chosen division.
    """

    def __init__(self, builder: Builder, graph: OpGraph, places: Places, label: str, plan: Plan) -> None:
        self.builder, self.graph, self.label, self.plan = builder, graph, label, plan
        self._places = places

    def value(self, v: int) -> Value:
        """The value of this number."""
        return self.graph.values[v]

    def region(self, v: int | None) -> Region:
        """A value's elements in its storage, in the value's shape; what an operation always makes is never None."""
        return region_of(self.graph, self._places, v)

    def partials(self, out: Region | None, dtype: torch.dtype, holders: np.ndarray) -> Region:
        """Parts of a result at tiles [parts, ...]; the result itself, if given, if it is one part that lies so."""
        if out is not None and len(holders) == 1 and (self.builder.holders(out) == holders[0]).all():
            return Region(variable=out.variable, elements=out.elements[None])
        return self.builder.partial(self.label, dtype, holders)

    def compute(
        self, name: str, operation: str, out: Region, work: GraphWork, keywords: Mapping[str, Any] | None = None
    ) -> None:
        """A compute set in which each tile makes those elements of a result that it holds.

        Args:
            name: What it does.
            operation: What each vertex does.
            out: What to write.
            work: For a tile and the positions of its elements what the vertex reads, and its arguments.
            keywords: Of the operation.
        """
        vertices, named = [], keywords or {}
        for tile, where in grouped(self.builder.holders(out).ravel()):
            (given, own), here = work(tile, where), (flat(out, where),)
            reads = tuple(given)
            made = Vertex(tile=tile, operation=operation, reads=reads, writes=here, arguments=own, keywords=named)
            vertices.append(made)
        self.builder.compute(name, vertices)


def region_of(graph: OpGraph, places: Places, v: int | None) -> Region:
    """Where a value of a graph is, given where its storages are."""
    assert v is not None
    value = graph.values[v]
    variable, start = places[value.storage]
    return Region(variable=variable, elements=np.asarray(start + elements_of(value)))


def elements_of(value: Value) -> np.ndarray:
    """Where each of a value's elements is in its storage. int64[value's shape]

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
    """A value's elements as they lie in its storage of `numel` elements, zero between them."""
    storage = torch.zeros(numel, dtype=value.dtype)
    storage[torch.from_numpy(elements_of(value).ravel())] = tensor.detach().reshape(-1)
    return storage


def part(region: Region, *where: object) -> Region:
    """Some of a region's elements, picked as numpy would."""
    return Region(variable=region.variable, elements=region.elements[where])  # type: ignore[index]


def reshaped(region: Region, *shape: int) -> Region:
    """A region in another shape."""
    return Region(variable=region.variable, elements=region.elements.reshape(shape))


def flat(region: Region, positions: np.ndarray) -> Region:
    """The elements at these positions in row-major order."""
    return Region(variable=region.variable, elements=region.elements.ravel()[positions])


def cuts(size: int, parts: int) -> list[slice]:
    """A dimension in parts as equal as can be, the last perhaps smaller; at least one.

    Example:
        >>> cuts(5, 2)
        [slice(0, 3, None), slice(3, 5, None)]
    """
    step = max(1, -(-size // max(parts, 1)))
    return [slice(start, min(start + step, size)) for start in range(0, max(size, 1), step)]

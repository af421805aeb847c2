"""The parts of a program: variables on tiles, and bulk-synchronous steps of compute sets and exchanges."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from popgeo.ipu.tiles.tile_mapping import TileMapping


@dataclass(frozen=True, kw_only=True)
class Variable:
    """Named memory of a program: a storage of the captured program, or a partial result of one operation.

    Attributes:
        name: Name in the steps.
        dtype: Type of an element.
        mapping: Tile of each element.
        lasting: Whether it keeps its content from one run to the next, as weights do.
    """

    name: str
    dtype: torch.dtype
    mapping: TileMapping
    lasting: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """Elements of a variable in the order of a vertex.

    Attributes:
        variable: Name of the variable.
        elements: Numbers of its elements; an element of a broadcast operand appears several times. int64[...]
    """

    variable: str
    elements: np.ndarray


@dataclass(frozen=True)
class Operand:
    """A position in the arguments of a vertex that takes the tensor of one of its `reads`.

    Attributes:
        position: Number of the tensor among the reads.
        order: The tensor's dimension for each dimension of the argument. Default: the same dimensions.
    """

    position: int
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Scalar:
    """A position in the arguments of a vertex that takes the number of one of its `reads`, of a single element."""

    position: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Vertex:
    """A piece of work on one tile, with access only to the memory of that tile.

    Attributes:
        tile: Number of its tile.
        operation: A torch operation such as `aten.mm.default`, or the name of a codelet.
        reads: Regions that it reads.
        writes: Region of each result; None for an unused result.
        arguments: Positional arguments; `Operand(i)` represents `reads[i]`, and `Scalar(i)` its number.
        keywords: Keyword arguments.
    """

    tile: int
    operation: str
    reads: tuple[Region, ...]
    writes: tuple[Region | None, ...]
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class ComputeSet:
    """Vertices that run at the same time, so none reads or writes an element that another writes.

    Attributes:
        name: Name of their work.
        vertices: The vertices, in no particular order.
    """

    name: str
    vertices: tuple[Vertex, ...]

    def __str__(self) -> str:
        tiles = {vertex.tile for vertex in self.vertices}
        vertices = _count(len(self.vertices), "vertex", "vertices")
        return f"compute {self.name}: {vertices} on {_count(len(tiles), 'tile')}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Transfer:
    """Elements that one tile sends to another.

    Attributes:
        variable: Name of the variable.
        source: The tile that sends.
        destination: The tile that receives a copy.
        elements: Numbers of the elements. int64[elements]
    """

    variable: str
    source: int
    destination: int
    elements: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchange:
    """A barrier of all tiles, then transfers at the same time, before the compute set that needs them.

    Attributes:
        name: Name of the compute set.
        transfers: The transfers; they never depend on data.
    """

    name: str
    transfers: tuple[Transfer, ...]

    def __str__(self) -> str:
        moved = sum(len(transfer.elements) for transfer in self.transfers)
        return f"sync\nexchange {self.name}: {_count(len(self.transfers), 'transfer')}, {_count(moved, 'element')}"


@dataclass(frozen=True, kw_only=True)
class HostCopy:
    """A copy of variables from the host, or to the host.

    Attributes:
        to_host: Whether the variables go to the host.
        streams: Name of the stream of each variable, by the variable's name.
    """

    to_host: bool
    streams: Mapping[str, str]

    def __str__(self) -> str:
        return f"host {'out' if self.to_host else 'in'}: {', '.join(self.streams.values())}"


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """A sum of variables over replicas; each replica receives the sum.

    Attributes:
        variables: Names of the variables.
        replicas: Number of replicas.
    """

    variables: tuple[str, ...]
    replicas: int

    def __str__(self) -> str:
        return f"all-reduce over {self.replicas} replicas: {', '.join(self.variables)}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Repeat:
    """A body that runs several times.

    Attributes:
        count: Number of passes.
        body: Steps of a pass, in order.
        name: Name of the passes.
    """

    count: int
    body: tuple["Step", ...]
    name: str = ""

    def __str__(self) -> str:
        head = f"repeat {self.count}{f' ({self.name})' if self.name else ''}:"
        return "\n".join([head, *(textwrap.indent(str(step), "  ") for step in self.body)])


Step = ComputeSet | Exchange | HostCopy | AllReduce | Repeat


def _count(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def shifted_mapping(mapping: TileMapping, tiles: int) -> TileMapping:
    """Return a mapping on the tiles of another IPU: each tile's number grows by `tiles`.

    Example:
        >>> import numpy as np
        >>> shifted_mapping(TileMapping(starts=np.array([0]), tiles=np.array([1]), numel=4), 8).tiles
        array([9])
    """
    return mapping if mapping.replicated else replace(mapping, tiles=mapping.tiles + tiles)


def shifted_steps(steps: Sequence[Step], renamed: Mapping[str, tuple[str, int]], tiles: int) -> list[Step]:
    """Return steps on the tiles of another IPU: each tile's number grows by `tiles`.

    Args:
        steps: Steps without copies from or to the host.
        renamed: Variable of the larger program for each variable of the steps, and its first element there.
        tiles: Number that is added to the number of each tile.
    """

    def region(one: Region | Transfer) -> Region:
        name, start = renamed[one.variable]
        return Region(variable=name, elements=one.elements + start if start else one.elements)

    def vertex(one: Vertex) -> Vertex:
        reads, writes = map(region, one.reads), (None if kept is None else region(kept) for kept in one.writes)
        return replace(one, tile=one.tile + tiles, reads=tuple(reads), writes=tuple(writes))

    def transfer(one: Transfer) -> Transfer:
        return Transfer(source=one.source + tiles, destination=one.destination + tiles, **vars(region(one)))

    moved: list[Step] = []
    for step in steps:
        if isinstance(step, ComputeSet):
            moved.append(replace(step, vertices=tuple(map(vertex, step.vertices))))
        elif isinstance(step, Exchange):
            moved.append(replace(step, transfers=tuple(map(transfer, step.transfers))))
        elif isinstance(step, Repeat):
            moved.append(replace(step, body=tuple(shifted_steps(step.body, renamed, tiles))))
        else:
            moved.append(step)
    return moved

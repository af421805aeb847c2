"""What a program consists of: variables spread over tiles, and bulk-synchronous steps of compute sets and exchanges."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from popgeo.ipu.tiles.tile_mapping import TileMapping


@dataclass(frozen=True, kw_only=True)
class Variable:
    """Memory that a program names: a storage of the captured program, or a partial result of one operation.

    Attributes:
        name: How steps refer to it.
        dtype: Type of an element.
        mapping: Which tile holds which element.
        lasting: Whether it keeps its content from one run to the next, as weights do.
    """

    name: str
    dtype: torch.dtype
    mapping: TileMapping
    lasting: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """Elements of a variable, in the order in which a vertex sees them.

    Attributes:
        variable: Name of the variable.
        elements: Which of its elements; one may stand several times, as a broadcast operand's does. int64[...]
    """

    variable: str
    elements: np.ndarray


@dataclass(frozen=True)
class Operand:
    """Where an argument of a vertex takes the tensor of one of its `reads`."""

    position: int


@dataclass(frozen=True)
class Scalar:
    """Where an argument of a vertex takes one of its `reads`, of a single element, as a plain number."""

    position: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Vertex:
    """A piece of work on one tile, which sees that tile's memory and nothing else.

    Attributes:
        tile: If it runs.
        operation: A torch operation such as `aten.mm.default`, or the name of a codelet.
        reads: What it reads.
        writes: What it writes, one for each result; None for an unused result.
        arguments: Positional arguments; `Operand(i)` represents `reads[i]`, `Scalar(i)` for its number.
        keywords: Keyword arguments, likewise.
    """

    tile: int
    operation: str
    reads: tuple[Region, ...]
    writes: tuple[Region | None, ...]
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class ComputeSet:
    """Vertices that run at the same time: none reads what another writes.

    Attributes:
        name: What they do together.
        vertices: In no particular order.
    """

    name: str
    vertices: tuple[Vertex, ...]

    def __str__(self) -> str:
        tiles = {vertex.tile for vertex in self.vertices}
        vertices = _count(len(self.vertices), "vertex", "vertices")
        return f"compute {self.name}: {vertices} on {_count(len(tiles), 'tile')}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Transfer:
    """Elements that go from the tile that holds them to another.

    Attributes:
        variable: Name of the variable.
        source: The tile that sends.
        destination: The tile that receives a copy.
        elements: Which elements. int64[elements]
    """

    variable: str
    source: int
    destination: int
    elements: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchange:
    """Transfers that happen at the same time, before the compute set that needs them.

    Attributes:
        name: The tensor that is moved, and its use.
        transfers: Who sends what to whom; the same at each run, whatever the data.
    """

    name: str
    transfers: tuple[Transfer, ...]

    def __str__(self) -> str:
        moved = sum(len(transfer.elements) for transfer in self.transfers)
        return f"exchange {self.name}: {_count(len(self.transfers), 'transfer')}, {_count(moved, 'element')}"


@dataclass(frozen=True, kw_only=True)
class Sync:
    """All tiles wait for each other."""

    def __str__(self) -> str:
        return "sync"


@dataclass(frozen=True, kw_only=True)
class HostCopy:
    """Variables that come from the host, or go there.

    Attributes:
        to_host: The direction.
        stream: What the host calls each variable's stream, by the variable's name.
    """

    to_host: bool
    streams: Mapping[str, str]

    def __str__(self) -> str:
        return f"host {'out' if self.to_host else 'in'}: {', '.join(self.streams.values())}"


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """Adds up a variable over replicas; each ends with the sum.

    Attributes:
        variables: Their names.
        replicas: How many take part.
    """

    variables: tuple[str, ...]
    replicas: int

    def __str__(self) -> str:
        return f"all-reduce over {self.replicas} replicas: {', '.join(self.variables)}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Repeat:
    """A body that runs several times.

    Attributes:
        count: How often.
        body: Its steps, in order.
        name: What one pass is.
    """

    count: int
    body: tuple["Step", ...]
    name: str = ""

    def __str__(self) -> str:
        head = f"repeat {self.count}{f' ({self.name})' if self.name else ''}:"
        return "\n".join([head, *(textwrap.indent(str(step), "  ") for step in self.body)])


Step = ComputeSet | Exchange | Sync | HostCopy | AllReduce | Repeat


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def shifted_mapping(mapping: TileMapping, tiles: int) -> TileMapping:
    """A mapping moved to the tiles of another IPU: each tile's number grows by `tiles`.

    Example:
        >>> import numpy as np
        >>> shifted_mapping(TileMapping(starts=np.array([0]), tiles=np.array([1]), numel=4), 8).tiles
        array([9])
    """
    return mapping if mapping.replicated else replace(mapping, tiles=mapping.tiles + tiles)


def shifted_steps(steps: Sequence[Step], renamed: Mapping[str, tuple[str, int]], tiles: int) -> list[Step]:
    """Steps moved to the tiles of another IPU: each tile's number grows by `tiles`.

    Args:
        steps: Without any for the host.
        renamed: For each of their variables that of the larger program, and where in it the former begins.
        tiles: How much larger the numbers of the tiles become.
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

"""What the machine runs: steps in order, on variables spread over tiles, the rules that they keep, and a call's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.engine.optimizer.capture_update import UpdateGraph
from popgeo.ipu.tiles.steps import ComputeSet, Exchange, Region, Repeat, Step, Variable, Vertex


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """Steps in order, and the variables that they read and write.

    Attributes:
        num_tiles: Tiles that it is made for.
        variables: By name.
        steps: In order.
        constants: What variables hold before the first step, flat, by name.
        fallbacks: Operations that no lowering knows; they run on one tile.

    Example:
        >>> from popgeo.ipu.tiles.steps import HostCopy
        >>> from popgeo.ipu.tiles.tile_mapping import TileMapping
        >>> mapping = TileMapping(starts=np.array([0]), tiles=np.array([1]), numel=2)
        >>> program = Program(
        ...     num_tiles=2,
        ...     variables={"x": Variable(name="x", dtype=torch.float32, mapping=mapping)},
        ...     steps=(Repeat(count=3, name="steps", body=(HostCopy(to_host=False, streams={"x": "input:x"}),)),),
        ... )
        >>> print(program)
        repeat 3 (steps):
          host in: input:x
    """

    num_tiles: int
    variables: Mapping[str, Variable]
    steps: tuple[Step, ...]
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    fallbacks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))

    def walk(self) -> Iterator[Step]:
        """Every step once, in order; bodies of repeats after the repeat itself."""
        yield from _walk(self.steps)

    def traffic(self) -> np.ndarray:
        """Bytes that each tile sends to each other in one pass over the steps, bodies of repeats once.

        Returns:
            By sender, then receiver. int64[num_tiles, num_tiles]
        """
        between = np.zeros((self.num_tiles, self.num_tiles), np.int64)
        for step in self.walk():
            for transfer in step.transfers if isinstance(step, Exchange) else ():
                width = self.variables[transfer.variable].dtype.itemsize
                between[transfer.source, transfer.destination] += width * len(transfer.elements)
        return between

    def check(self) -> None:
        """Checks that the program is complete: all data that a tile needs lies there or is sent there in time.

        Each element lies on exactly one tile, unless its variable is replicated; a tile sends what it holds; a vertex
        reads what its tile holds or the exchange before it brought, and writes what its tile holds; in a compute set
        nobody reads or writes what another writes.

        Raises:
            ValueError: a rule is broken; the message names the step, the variable and the tile.
        """
        for variable in self.variables.values():
            _check_mapping(variable, self.num_tiles)
        holders = {n: None if v.mapping.replicated else v.mapping.holders() for n, v in self.variables.items()}
        sent: _Sent = {}
        for step in self.walk():
            if isinstance(step, Exchange):
                _check_exchange(step, holders, sent)
            elif isinstance(step, ComputeSet):
                for vertex in step.vertices:
                    _check_vertex(step.name, vertex, holders, sent)
                _check_apart(step, holders)
                sent = {}


_Holders = Mapping[str, np.ndarray | None]  # the tile of each element; None where every tile has a copy
_Sent = dict[tuple[str, int], list[np.ndarray]]  # what has arrived since the last compute set, by variable and tile


def _check_mapping(variable: Variable, num_tiles: int) -> None:
    mapping = variable.mapping
    if mapping.replicated or not mapping.numel:
        return
    ascending = mapping.starts[0] == 0 and (np.diff(mapping.starts) > 0).all() and mapping.starts[-1] < mapping.numel
    if not ascending:
        raise ValueError(f"Intervals of {variable.name} do not hold each of its elements once: {mapping.starts}.")
    if not 0 <= mapping.tiles.min() <= mapping.tiles.max() < num_tiles:
        raise ValueError(f"{variable.name} lies on tile {mapping.tiles.max()}, but there are {num_tiles}.")


def _check_exchange(step: Exchange, holders: _Holders, sent: _Sent) -> None:
    for transfer in step.transfers:
        at = holders[transfer.variable]
        if at is None or (at[transfer.elements] != transfer.source).any():
            raise ValueError(f"{step.name}: tile {transfer.source} sends what it does not hold of {transfer.variable}.")
        if transfer.destination == transfer.source:
            raise ValueError(f"{step.name}: tile {transfer.source} sends {transfer.variable} to itself.")
        sent.setdefault((transfer.variable, transfer.destination), []).append(transfer.elements)


def _check_vertex(step: str, vertex: Vertex, holders: _Holders, sent: _Sent) -> None:
    for region in vertex.reads:
        at = holders[region.variable]
        if at is None:
            continue
        elements = np.unique(region.elements)
        absent = elements[at[elements] != vertex.tile]
        brought = sent.get((region.variable, vertex.tile), [])
        if len(absent) and not (brought and np.isin(absent, np.concatenate(brought)).all()):
            raise ValueError(f"{step}: a vertex on tile {vertex.tile} reads {region.variable}, which is not there.")
    for written in vertex.writes:
        at = None if written is None else holders[written.variable]
        if written is not None and (at is None or (at[written.elements] != vertex.tile).any()):
            raise ValueError(f"{step}: a vertex on tile {vertex.tile} writes {written.variable} of another tile.")


def _check_apart(step: ComputeSet, holders: _Holders) -> None:
    """Vertices of a compute set run in any order: the writer of an element is the only one that touches it there."""
    writer: dict[str, np.ndarray] = {}
    for number, vertex in enumerate(step.vertices):
        for region in vertex.writes:
            at = None if region is None else holders[region.variable]
            if region is None or at is None:
                continue
            elements = np.unique(region.elements)
            owner = writer.setdefault(region.variable, np.full(len(at), -1))
            if (owner[elements] >= 0).any():
                raise ValueError(f"{step.name}: two vertices write the same elements of {region.variable}.")
            owner[elements] = number
    for number, vertex in enumerate(step.vertices):
        for region in vertex.reads:
            at = holders[region.variable]
            if region.variable not in writer or at is None:
                continue
            # What came over the exchange is a copy of the value before this compute set.
            here = region.elements[at[region.elements] == vertex.tile]
            owner = writer[region.variable][here]
            if ((owner >= 0) & (owner != number)).any():
                raise ValueError(f"{step.name}: a vertex reads elements of {region.variable} that another writes.")


def _walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        if isinstance(step, Repeat):
            yield from _walk(step.body)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What happens to gradients.

    Attributes:
        members: For each joined weight tensor the names of its parameters, in order.
        trained: Names of the parameters in the order of the step's gradients.
        updates: The update of each device iteration, in order.
        scaling: What is done to sums of gradients before each update; None leaves them.
    """

    members: Sequence[Sequence[str]]
    trained: Sequence[str]
    updates: Sequence[UpdateGraph]
    scaling: OpGraph | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CallProgram:
    """The program of a call, and where the host finds what it gives to it and takes from it.

    Attributes:
        program: What the machine runs.
        places: The elements of each input of the step, in its shape, and of each piece of the optimizer's state, in the
            order in which they lie in memory.
        results: The stream of each of the step's results, and which of the stream's elements it is, in its shape.
    """

    program: Program
    places: Mapping[Input, Region]
    results: tuple[tuple[str, np.ndarray], ...]

    def arguments(self) -> dict[str, Region]:
        """The stream of each argument, in order, and its elements."""
        return {str(given): region for given, region in self.places.items() if given.role is Role.ARGUMENT}

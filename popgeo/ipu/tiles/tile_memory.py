"""The memory of each tile apart: a vertex finds what its tile holds or was sent, and no more."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from popgeo.ipu.tiles.codelets import run_vertex
from popgeo.ipu.tiles.lower.builder import grouped
from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.steps import ComputeSet, Exchange, Region, Variable, Vertex


class TileMemory:
    """The memory of all tiles while a program runs.

    What a tile holds of a variable is a buffer of its own, of NaN and marked as unwritten until a vertex or the host
    writes there. What it is sent lies in another place, which is emptied after the next compute set.

    Args:
        num_tiles: Tiles there are.
        random: State of the random numbers that its vertices draw; torch's own when left out.
    """

    def __init__(self, num_tiles: int, random: Tensor | None = None) -> None:
        self.random = random
        self._tiles = [_Tile() for _ in range(num_tiles)]
        self._lasting: set[str] = set()
        self._program: Program | None = None

    def use(self, program: Program) -> None:
        """Makes a program's variables known; those that do not last start unwritten, or as the program's constants."""
        self._lasting |= {name for name, variable in program.variables.items() if variable.lasting}
        for tile in self._tiles:
            tile.held = {name: held for name, held in tile.held.items() if name in self._lasting}
        for name, variable in program.variables.items():
            mapping = variable.mapping
            if mapping.replicated:
                shares = {number: np.arange(mapping.numel) for number in range(len(self._tiles))}
            else:
                shares = dict(grouped(mapping.holders()))
            for number, elements in shares.items():
                held = self._tiles[number].held
                if not variable.lasting or name not in held:
                    held[name] = _Buffer.unwritten(elements, variable.dtype)
        self._program = program
        for name, values in program.constants.items():
            self.write(name, values)

    def write(self, name: str, values: Tensor) -> None:
        """Spreads a flat tensor over the tiles that hold a variable."""
        for held in self._buffers(name).values():
            held.put(held.elements, values[torch.from_numpy(held.elements)])

    def read(self, name: str) -> Tensor:
        """Collects a variable from its tiles, flat.

        Raises:
            ValueError: a tile has not written all of what it holds.
        """
        variable = self._variable(name)
        out = torch.empty(variable.mapping.numel, dtype=variable.dtype)
        for tile, held in self._buffers(name).items():
            if not held.written.all():
                raise ValueError(f"Tile {tile} never wrote all that it holds of {name}.")
            out[torch.from_numpy(held.elements)] = held.values
        return out

    def _buffers(self, name: str) -> "dict[int, _Buffer]":
        """What each tile that holds a part of a variable has of it."""
        return {number: tile.held[name] for number, tile in enumerate(self._tiles) if name in tile.held}

    def _variable(self, name: str) -> Variable:
        assert self._program is not None
        return self._program.variables[name]

    def exchange(self, step: Exchange) -> None:
        """Copies the elements of each transfer to the tile that receives them."""
        for transfer in step.transfers:
            source = self._tiles[transfer.source].held.get(transfer.variable)
            values, found = source.find(transfer.elements) if source is not None else (None, np.zeros(1, bool))
            if values is None or not found.all():
                raise ValueError(
                    f"Tile {transfer.source} was to send {len(transfer.elements)} elements of {transfer.variable} to "
                    f"tile {transfer.destination}, but does not hold them or never wrote them."
                )
            brought = _Buffer(elements=transfer.elements, values=values, written=found)
            self._tiles[transfer.destination].sent.setdefault(transfer.variable, []).append(brought)

    def compute(self, step: ComputeSet) -> None:
        """Runs each vertex on its tile.

        Raises:
            ValueError: a vertex reads what its tile does not hold or what was never written, or writes elsewhere.
        """
        own = self.random if any(vertex.operation == "call" for vertex in step.vertices) else None
        # Not every operation takes a generator, so torch's own is in for the replica's while it runs.
        with torch.random.fork_rng(devices=(), enabled=own is not None):
            if own is not None:
                torch.set_rng_state(own)
            for vertex in step.vertices:
                self._run(step, vertex)
            if own is not None:
                self.random = torch.get_rng_state()
        for tile in self._tiles:
            tile.sent.clear()

    def forget(self, names: Iterable[str]) -> None:
        """Marks variables as unwritten, unless they last."""
        assert self._program is not None
        for name in names:
            if not self._variable(name).lasting and name not in self._program.constants:
                for held in self._buffers(name).values():
                    held.written[:] = False

    def _run(self, step: ComputeSet, vertex: Vertex) -> None:
        """A vertex is given copies of what its tile has; its results go where its tile holds the variables."""
        tile = self._tiles[vertex.tile]
        reads = [tile.look(region, self._variable(region.variable).dtype, vertex, step.name) for region in vertex.reads]
        results = run_vertex(vertex.operation, vertex.arguments, vertex.keywords, reads)
        for region, result in zip(vertex.writes, results, strict=False):
            if region is None or result is None:
                continue
            held = tile.held.get(region.variable)
            expected = self._variable(region.variable).dtype
            if held is None or not held.holds(region.elements.ravel()):
                raise ValueError(
                    f"{step.name}: a vertex on tile {vertex.tile} writes {region.variable} where another tile holds it."
                )
            if result.dtype is not expected or result.numel() != region.elements.size:
                raise ValueError(
                    f"{step.name}: a vertex makes {result.dtype}{list(result.shape)} for {region.variable}, which is "
                    f"{expected}{list(region.elements.shape)} there."
                )
            held.put(region.elements.ravel(), result.reshape(-1))


@dataclass(kw_only=True)
class _Buffer:
    """Elements of a variable in one tile's memory, in ascending order."""

    elements: np.ndarray
    values: Tensor
    written: np.ndarray

    @classmethod
    def unwritten(cls, elements: np.ndarray, dtype: torch.dtype) -> "_Buffer":
        values = torch.full((len(elements),), torch.nan if dtype.is_floating_point else 0, dtype=dtype)
        return cls(elements=elements, values=values, written=np.zeros(len(elements), bool))

    @classmethod
    def joined(cls, buffers: Sequence["_Buffer"]) -> "_Buffer":
        if len(buffers) == 1:
            return buffers[0]
        elements = np.concatenate([buffer.elements for buffer in buffers])
        order = np.argsort(elements, kind="stable")
        values = torch.cat([buffer.values for buffer in buffers])
        return cls(elements=elements[order], values=values[torch.from_numpy(order)], written=np.ones(len(order), bool))

    def put(self, elements: np.ndarray, values: Tensor) -> None:
        where = np.searchsorted(self.elements, elements)
        self.values[torch.from_numpy(where)] = values
        self.written[where] = True

    def holds(self, elements: np.ndarray) -> bool:
        where = np.minimum(np.searchsorted(self.elements, elements), len(self.elements) - 1)
        return bool((self.elements[where] == elements).all())

    def find(self, elements: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """The values of some elements, and which of them are here and written."""
        where = np.minimum(np.searchsorted(self.elements, elements), len(self.elements) - 1)
        return self.values[torch.from_numpy(where)], (self.elements[where] == elements) & self.written[where]


@dataclass
class _Tile:
    """One tile: what it holds, and what the last exchange brought."""

    held: dict[str, _Buffer] = field(default_factory=dict)
    sent: dict[str, list[_Buffer]] = field(default_factory=dict)

    def look(self, region: Region, dtype: torch.dtype, vertex: Vertex, step: str) -> Tensor:
        """What a vertex reads, in the region's shape."""
        wanted = region.elements.ravel()
        out, found = torch.zeros(len(wanted), dtype=dtype), np.zeros(len(wanted), bool)
        if region.variable in self.held:
            out, found = self.held[region.variable].find(wanted)
        if region.variable in self.sent and not found.all():
            self.sent[region.variable] = [_Buffer.joined(self.sent[region.variable])]
            brought, here = self.sent[region.variable][0].find(wanted)
            out[torch.from_numpy(~found)] = brought[torch.from_numpy(~found)]
            found = found | here
        if not found.all():
            raise ValueError(
                f"{step}: a vertex on tile {vertex.tile} reads {int((~found).sum())} elements of {region.variable} "
                "that its tile neither holds nor was sent."
            )
        return out.reshape(region.elements.shape)

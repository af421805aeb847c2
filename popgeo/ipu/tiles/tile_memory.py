"""The separate memory of each tile: a vertex finds only values that its tile holds or received."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from popgeo.ipu.tiles.codelets import run_vertex
from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.steps import ComputeSet, Exchange, Region, Variable, Vertex


class TileMemory:
    """The memory of all tiles while a program runs.

    Each element of a variable is on one tile, or a copy of it on every tile. It is marked as unwritten until a vertex
    or the host writes it. Elements that a tile receives are separate copies, which vanish after the next compute set.

    Args:
        random: State of the random numbers that its vertices draw. Default: the state of torch's generator.
    """

    def __init__(self, random: Tensor | None = None) -> None:
        self.random = random
        self._held: dict[str, _Held] = {}
        self._received: dict[tuple[int, str], list[tuple[np.ndarray, Tensor]]] = {}
        self._constants: frozenset[str] = frozenset()

    def use(self, program: Program) -> None:
        """Make the variables of a program known; unless they last, they start unwritten or as its constants."""
        self._held = {name: held for name, held in self._held.items() if held.variable.lasting}
        for name, variable in program.variables.items():
            if not variable.lasting or name not in self._held:
                self._held[name] = _Held.unwritten(variable)
        self._constants = frozenset(program.constants)
        for name, values in program.constants.items():
            self.write(name, values)

    def write(self, name: str, values: Tensor) -> None:
        """Write a flat tensor to the tiles that hold a variable."""
        held = self._held[name]
        held.values.copy_(values)
        held.written[:] = True

    def read(self, name: str) -> Tensor:
        """Return a variable from its tiles, flat.

        Raises:
            ValueError: a tile has not written all elements that it holds.
        """
        held = self._held[name]
        if not held.written.all():
            tile = held.tiles[~held.written][0]
            raise ValueError(f"Tile {tile} never wrote all elements that it holds of {name}.")
        return held.values.clone()

    def exchange(self, step: Exchange) -> None:
        """Copy the elements of each transfer to the tile that receives them.

        Raises:
            ValueError: the sending tile does not hold the elements, or has not written them.
        """
        for transfer in step.transfers:
            held, elements = self._held[transfer.variable], transfer.elements
            if not held.readable(transfer.source, elements).all():
                raise ValueError(
                    f"Tile {transfer.source} was to send {len(elements)} elements of {transfer.variable} to tile "
                    f"{transfer.destination}, but does not hold them or never wrote them."
                )
            order = np.argsort(elements, kind="stable")
            brought = elements[order], held.values[torch.from_numpy(elements[order])]
            self._received.setdefault((transfer.destination, transfer.variable), []).append(brought)

    def compute(self, step: ComputeSet) -> None:
        """Run each vertex on its tile.

        Raises:
            ValueError: a vertex reads elements that its tile does not hold or never wrote, or writes to another tile.
        """
        own = self.random if any(vertex.operation == "call" for vertex in step.vertices) else None
        # Not every operation takes a generator, so torch's own generator takes the replica's state meanwhile.
        with torch.random.fork_rng(devices=(), enabled=own is not None):
            if own is not None:
                torch.set_rng_state(own)
            for vertex in step.vertices:
                self._run(step, vertex)
            if own is not None:
                self.random = torch.get_rng_state()
        self._received.clear()

    def forget(self, names: Iterable[str]) -> None:
        """Mark variables as unwritten, unless they last or are constants."""
        for name in names:
            held = self._held[name]
            if not held.variable.lasting and name not in self._constants:
                held.written[:] = False

    def _run(self, step: ComputeSet, vertex: Vertex) -> None:
        """Run a vertex on copies of the elements that it reads, and write its results to its tile."""
        reads = [self._look(region, vertex.tile, step.name) for region in vertex.reads]
        results = run_vertex(vertex.operation, vertex.arguments, vertex.keywords, reads)
        for region, result in zip(vertex.writes, results, strict=False):
            if region is None or result is None:
                continue
            held, elements = self._held[region.variable], region.elements.flatten()
            if not held.on(vertex.tile, elements).all():
                raise ValueError(
                    f"{step.name}: a vertex on tile {vertex.tile} writes {region.variable} where another tile holds it."
                )
            if result.dtype is not held.values.dtype or result.numel() != elements.size:
                raise ValueError(
                    f"{step.name}: a vertex makes {result.dtype}{list(result.shape)} for {region.variable}, which is "
                    f"{held.values.dtype}{list(region.elements.shape)} there."
                )
            held.values[torch.from_numpy(elements)] = result.reshape(-1)
            held.written[elements] = True

    def _look(self, region: Region, tile: int, step: str) -> Tensor:
        """Return the elements of a region from the memory of a tile, in the region's shape."""
        held, wanted = self._held[region.variable], region.elements.flatten()
        values, found = held.values[torch.from_numpy(wanted)], held.readable(tile, wanted)
        for elements, received in self._received.get((tile, region.variable), ()):
            where = np.minimum(np.searchsorted(elements, wanted), len(elements) - 1)
            here = (elements[where] == wanted) & ~found
            values[torch.from_numpy(here)] = received[torch.from_numpy(where[here])]
            found |= here
        if not found.all():
            raise ValueError(
                f"{step}: a vertex on tile {tile} reads {int((~found).sum())} elements of {region.variable} that its "
                "tile neither holds nor received."
            )
        return values.reshape(region.elements.shape)


EVERY_TILE = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class _Held:
    """A variable in the memory of its tiles.

    Attributes:
        variable: The variable.
        values: Value of each element. [elements]
        written: Whether each element is written. [elements]
        tiles: The tile of each element; `EVERY_TILE` if every tile has a copy. [elements]
    """

    variable: Variable
    values: Tensor
    written: np.ndarray
    tiles: np.ndarray

    @classmethod
    def unwritten(cls, variable: Variable) -> "_Held":
        """Return a variable of NaN, or of zeros for integers, without written elements."""
        mapping, dtype = variable.mapping, variable.dtype
        values = torch.full((mapping.numel,), torch.nan if dtype.is_floating_point else 0, dtype=dtype)
        tiles = np.full(mapping.numel, EVERY_TILE) if mapping.replicated else mapping.holders()
        return cls(variable=variable, values=values, written=np.zeros(mapping.numel, bool), tiles=tiles)

    def on(self, tile: int, elements: np.ndarray) -> np.ndarray:
        """Return which elements are on a tile."""
        tiles = self.tiles[elements]
        return (tiles == tile) | (tiles == EVERY_TILE)

    def readable(self, tile: int, elements: np.ndarray) -> np.ndarray:
        """Return which elements are on a tile and written."""
        return self.on(tile, elements) & self.written[elements]

"""Mappings of elements to tiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np


@dataclass(frozen=True, kw_only=True, eq=False)
class TileMapping:
    """The tile of each element of a value, as sorted intervals of elements in row-major order.

    Attributes:
        starts: First element of each interval, ascending; the first is 0. int64[intervals]
        tiles: Tile of each interval. int32[intervals]
        numel: Number of elements; the last interval ends there.
        replicated: Whether every tile holds a copy; then there is one interval, and its tile is 0.

    Example:
        >>> mapping = TileMapping(starts=np.array([0, 32]), tiles=np.array([0, 1]), numel=40)
        >>> mapping.elements_per_tile(num_tiles=3)
        array([32,  8,  0])
    """

    starts: np.ndarray
    tiles: np.ndarray
    numel: int
    replicated: bool = False

    @property
    def ends(self) -> np.ndarray:
        """The end of each interval. int64[intervals]."""
        return np.append(self.starts[1:], self.numel)

    @cached_property
    def num_used(self) -> int:
        """The number of tiles that hold elements."""
        return len(np.unique(self.tiles))

    def elements_per_tile(self, num_tiles: int) -> np.ndarray:
        """Return the number of elements on each tile. int64[num_tiles]."""
        if self.replicated:
            return np.full(num_tiles, self.numel, dtype=np.int64)
        return np.bincount(self.tiles, weights=self.ends - self.starts, minlength=num_tiles).astype(np.int64)

    def holders(self) -> np.ndarray:
        """Return the tile of each element. int32[numel]."""
        return np.repeat(self.tiles, self.ends - self.starts)


def from_holders(holders: np.ndarray) -> TileMapping:
    """Return the mapping that puts element `i` on tile `holders[i]`.

    Example:
        >>> from_holders(np.array([0, 0, 2, 2, 1])).starts
        array([0, 2, 4])
    """
    changes = np.append(np.zeros(min(len(holders), 1), np.int64), 1 + np.flatnonzero(holders[1:] != holders[:-1]))
    return TileMapping(starts=changes.astype(np.int64), tiles=holders[changes].astype(np.int32), numel=len(holders))


def concatenated(mappings: Sequence[TileMapping]) -> TileMapping:
    """Return the mapping of several values, one after the other."""
    offsets = np.cumsum([0, *(mapping.numel for mapping in mappings)])
    parts = zip(mappings, offsets[:-1], strict=True)
    starts = np.concatenate([mapping.starts[: len(mapping.tiles)] + offset for mapping, offset in parts])
    tiles = np.concatenate([mapping.tiles for mapping in mappings])
    return TileMapping(starts=starts, tiles=tiles, numel=int(offsets[-1]))


def blocked(rows: int, columns: int, row_parts: int, column_parts: int, num_tiles: int) -> TileMapping:
    """Return the mapping of a matrix in a grid of blocks, row by row, each on its own tile while there are tiles.

    Args:
        rows: Rows of the matrix.
        columns: Columns of the matrix; elements of a row are neighbors.
        row_parts: Number of parts of the rows.
        column_parts: Number of parts of the columns.
        num_tiles: Number of tiles.

    Example:
        >>> blocked(4, 6, row_parts=2, column_parts=2, num_tiles=8).elements_per_tile(8)
        array([6, 6, 6, 6, 0, 0, 0, 0])
    """
    key = rows, columns, row_parts, column_parts, num_tiles
    if (found := _BLOCKED.get(key)) is None:
        found = _BLOCKED[key] = _blocked(*key)
    return found


_BLOCKED: WeakValueDictionary[tuple[int, ...], TileMapping] = WeakValueDictionary()  # equal layers share the arrays


def _blocked(rows: int, columns: int, row_parts: int, column_parts: int, num_tiles: int) -> TileMapping:
    """Compute the mapping that `blocked` returns."""
    high, wide = -(-rows // max(row_parts, 1)), -(-columns // max(column_parts, 1))
    if wide >= columns:
        starts = np.arange(0, max(rows * columns, 1), max(high * columns, 1), dtype=np.int64)
        tiles = (np.arange(len(starts)) % num_tiles).astype(np.int32)
        return TileMapping(starts=starts, tiles=tiles, numel=rows * columns)
    across = np.arange(0, columns, wide, dtype=np.int64)
    down = np.arange(rows, dtype=np.int64)
    starts = (down[:, None] * columns + across).ravel()
    tiles = ((down // high)[:, None] * len(across) + np.arange(len(across))).ravel() % num_tiles
    return TileMapping(starts=starts, tiles=tiles.astype(np.int32), numel=rows * columns)


def linear(numel: int, num_tiles: int, grain: int) -> TileMapping:
    """Return the mapping of elements in order, spread evenly from tile 0 on, with at least `grain` on a tile.

    Args:
        numel: Number of elements.
        num_tiles: Number of tiles.
        grain: Least number of elements on a tile; poplar's grain is 128 bytes.

    Example:
        >>> linear(100, num_tiles=1472, grain=32).elements_per_tile(5)
        array([32, 32, 32,  4,  0])
    """
    per_tile = max(grain, -(-numel // num_tiles))
    starts = np.arange(0, max(numel, 1), per_tile, dtype=np.int64)
    return TileMapping(starts=starts, tiles=np.arange(len(starts), dtype=np.int32), numel=numel)

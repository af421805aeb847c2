"""Which tile holds which element of a value."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, eq=False)
class TileMapping:
    """Sorted intervals of a value's elements (row-major order), each on one tile.

    Attributes:
        starts: First element of each interval, ascending, the first 0. int64[intervals]
        tiles: The tile that holds it. int32[intervals]
        numel: Elements of the value; the last interval ends there.
        replicated: Every tile holds a copy of its own; then there is one interval, and its tile is 0.

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
        """The element after each interval. int64[intervals]"""
        return np.append(self.starts[1:], self.numel)

    def elements_per_tile(self, num_tiles: int) -> np.ndarray:
        """How many elements each tile holds. int64[num_tiles]"""
        if self.replicated:
            return np.full(num_tiles, self.numel, dtype=np.int64)
        return np.bincount(self.tiles, weights=self.ends - self.starts, minlength=num_tiles).astype(np.int64)

    def holders(self) -> np.ndarray:
        """The tile that holds each element. int32[numel]"""
        return np.repeat(self.tiles, self.ends - self.starts)


def from_holders(holders: np.ndarray) -> TileMapping:
    """The mapping that puts element `i` on tile `holders[i]`.

    Example:
        >>> from_holders(np.array([0, 0, 2, 2, 1])).starts
        array([0, 2, 4])
    """
    changes = np.append(np.zeros(min(len(holders), 1), np.int64), 1 + np.flatnonzero(holders[1:] != holders[:-1]))
    return TileMapping(starts=changes.astype(np.int64), tiles=holders[changes].astype(np.int32), numel=len(holders))


def concatenated(mappings: Sequence[TileMapping]) -> TileMapping:
    """Where elements lie that stand one value after the other."""
    offsets = np.cumsum([0, *(mapping.numel for mapping in mappings)])
    parts = zip(mappings, offsets[:-1], strict=True)
    starts = np.concatenate([mapping.starts[: len(mapping.tiles)] + offset for mapping, offset in parts])
    tiles = np.concatenate([mapping.tiles for mapping in mappings])
    return TileMapping(starts=starts, tiles=tiles, numel=int(offsets[-1]))


def blocked(rows: int, columns: int, row_parts: int, column_parts: int, num_tiles: int) -> TileMapping:
    """A matrix cut into a grid of blocks, each on a tile of its own as long as there are tiles; blocks row by row.

    Args:
        rows: Rows of the matrix.
        columns: Columns; elements of a row lie side by side.
        row_parts: Into how many parts the rows are cut.
        column_parts: Into how many parts the columns are cut.
        num_tiles: Tiles there are.

    Example:
        >>> blocked(4, 6, row_parts=2, column_parts=2, num_tiles=8).elements_per_tile(8)
        array([6, 6, 6, 6, 0, 0, 0, 0])
    """
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
    """Elements in order, spread evenly over as many tiles as get at least `grain` of them, from tile 0 on.

    Args:
        numel: Elements of the value.
        num_tiles: Tiles there are.
        grain: Least number of elements a tile takes; poplar's is 128 bytes of them.

    Example:
        >>> linear(100, num_tiles=1472, grain=32).elements_per_tile(5)
        array([32, 32, 32,  4,  0])
    """
    per_tile = max(grain, -(-numel // num_tiles))
    starts = np.arange(0, max(numel, 1), per_tile, dtype=np.int64)
    return TileMapping(starts=starts, tiles=np.arange(len(starts), dtype=np.int32), numel=numel)

"""Which tile holds which element of a value."""

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
            return np.full(num_tiles, self.numel)
        return np.bincount(self.tiles, weights=self.ends - self.starts, minlength=num_tiles).astype(np.int64)


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

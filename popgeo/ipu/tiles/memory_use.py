"""The memory of the tiles that a compiled step uses."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from popgeo.quantity import quantity


@dataclass(frozen=True, kw_only=True)
class Resident:
    """A value or a piece of code in the memory of one tile.

    Attributes:
        name: Name of the input, or of the operation that makes the value, with its shape.
        nbytes: Bytes on the tile.
        source: Line of the model.
    """

    name: str
    nbytes: int
    source: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryUse:
    """The memory of the tiles that a step uses.

    Attributes:
        limit: Memory of a tile, in bytes.
        categories: Bytes of each tile by category: `weights and optimizer`, `inputs and results`, `values` (at the
            tile's peak), `vertex state`, `vertex code`, `control code`, `exchange code`, `stack`. int64[tiles] each
        always_live: Bytes that keep their place, all categories but `values`. int64[tiles]
        peak: Most bytes at any time. int64[tiles]
        curve: Bytes of the fullest tile while each operation runs. int64[ops]
        peak_tile: Number of the tile with the highest peak.
        peak_op: Position of the operation that runs at this peak.
        largest: Largest items of `peak_tile` at this peak, largest first.
    """

    limit: int
    categories: Mapping[str, np.ndarray]
    always_live: np.ndarray
    peak: np.ndarray
    curve: np.ndarray
    peak_tile: int
    peak_op: int
    largest: tuple[Resident, ...]

    def __repr__(self) -> str:
        """Return the peak of the fullest tile."""
        most = int(self.peak.max(initial=0))
        return (
            f"{type(self).__name__}({quantity(most, 'B')} of {quantity(self.limit, 'B')} on the fullest tile, number "
            f"{self.peak_tile:,}, in operation {self.peak_op:,}; {'fits' if self.fits else 'does not fit'})"
        )

    @property
    def fits(self) -> bool:
        """Whether no tile ever needs more memory than it has."""
        return int(self.peak.max(initial=0)) <= self.limit

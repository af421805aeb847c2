"""What a compiled step keeps in the tiles' memory."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from popgeo.quantity import quantity


@dataclass(frozen=True, kw_only=True)
class Resident:
    """A value or a piece of code, and the bytes that it takes on one tile.

    Attributes:
        name: An input's name, or the operation that makes the value and its shape.
        nbytes: Bytes on the tile in question.
        source: The model's line behind it.
    """

    name: str
    nbytes: int
    source: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryUse:
    """Bytes per tile.

    Attributes:
        limit: Bytes that a tile has.
        categories: Bytes of each tile by what they hold: `weights and optimizer`, `inputs and results`, `values` (at
            the tile's peak), `vertex state`, `vertex code`, `control code`, `exchange code`, `stack`. int64[tiles] each
        always_live: Bytes that never change hands, all categories but `values`. int64[tiles]
        peak: Most bytes at any time. int64[tiles]
        curve: Bytes of the fullest tile while each operation runs. int64[ops]
        peak_tile: The tile that reaches the most.
        peak_op: Which operation runs then.
        largest: What takes most of `peak_tile` then, largest first.
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
        most = int(self.peak.max(initial=0))
        return (
            f"{type(self).__name__}({quantity(most, 'B')} of {quantity(self.limit, 'B')} on the fullest tile, number "
            f"{self.peak_tile:,}, in operation {self.peak_op:,}; {'fits' if self.fits else 'does not fit'})"
        )

    @property
    def fits(self) -> bool:
        """Whether no tile ever needs more than it has."""
        return int(self.peak.max(initial=0)) <= self.limit

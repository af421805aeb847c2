"""All ways to cut three dimensions over the tiles, and the choice of the cheapest way."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from popgeo.ipu.cost.plan import Judgement, Plan, Superstep
from popgeo.ipu.cost.supersteps import compute_step, exchange_step
from popgeo.ipu.cost.vertex_cycles import ceil_div
from popgeo.ipu.target import IpuTarget

# Poplar's default for the share of a tile's memory that an operation may take while it runs.
MEMORY_SHARE = 0.6
USABLE_SHARE = 0.85  # of a tile's memory; code, stacks and exchange instructions take the rest
GRAIN_BYTES = 8  # least bytes of a part of a row


@functools.lru_cache(maxsize=8)
def triples(num_tiles: int) -> np.ndarray:
    """Return every (a, b, c) of whole numbers with a * b * c <= num_tiles. int32[3, splits].

    Example:
        >>> triples(2).T.tolist()
        [[1, 1, 1], [1, 1, 2], [1, 2, 1], [2, 1, 1]]
    """
    every, left = np.empty((0, 1), dtype=np.int32), np.array([num_tiles])
    for _ in range(3):  # each dimension has 1 part up to the number of tiles that the earlier dimensions leave
        parts = np.arange(1, left.sum() + 1, dtype=np.int32) - np.repeat(left.cumsum(dtype=np.int32) - left, left)
        every = np.concatenate([np.repeat(every, left, axis=1), parts[np.newaxis]], dtype=np.int32)
        left = np.repeat(left, left) // parts
    every.setflags(write=False)
    return every


def within(num_tiles: int, first: int, second: int, third: int) -> np.ndarray:
    """Return the splits of `triples` with at most the given number of parts of each dimension. int64[3, splits]."""
    every = triples(num_tiles)
    limits = np.maximum([[first], [second], [third]], 1)
    return every[:, (every <= limits).all(axis=0)].astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class CheapestSplit:
    """The cheapest of many splits.

    Attributes:
        cuts: Number of parts of the three dimensions.
        terms: Cycles and bytes, by name.
        considered: Number of splits that were compared.
        target: The machine.
        side_by_side: Number of independent pieces of work at the same time, each on its own tiles.
        turns: Number of pieces of work one after the other.
    """

    cuts: tuple[int, int, int]
    terms: Mapping[str, float]
    considered: int
    target: IpuTarget
    side_by_side: int = 1
    turns: int = 1

    @property
    def tiles(self) -> int:
        """Number of tiles at work."""
        return self.side_by_side * math.prod(self.cuts)

    def plan(
        self, family: str, split: Mapping[str, int], steps: Sequence[Superstep], judged: Judgement, flops: int = 0
    ) -> Plan:
        """Return the plan of work for this split."""
        return Plan(
            family=family,
            split=split,
            supersteps=tuple(steps),
            temporary_bytes=int(self.terms["nbytes"]),
            flops=flops,
            considered=self.considered,
            validity=judged[0],
            why=judged[1],
        )

    def fits(self, share: float) -> bool:
        """Check whether a tile needs no more than the given share of its memory."""
        return self.terms["nbytes"] <= work_space(self.target, self.terms["held"], share)

    def exchange(self, name: str, term: str, factor: float, *, receivers: int = 1, fragments: int = 1) -> Superstep:
        """Return an exchange with the cycles of a term; each turn synchronises again.

        Args:
            name: Name of the exchange.
            term: Name of the term with its cycles; the term `<name>_bytes` has the bytes that a tile receives.
            factor: Calibrated cycles as a multiple of the term.
            receivers: Number of tiles that receive the same data.
            fragments: Most pieces that a tile receives in a turn.
        """
        cycles, nbytes = self.terms[term], self.turns * self.terms[f"{term}_bytes"]
        return exchange_step(
            name, self.target, transfer=self.turns * cycles + (self.turns - 1) * self.target.sync_cycles,
            calibrated=factor * self.turns * cycles, bytes_in=nbytes, bytes_out=nbytes / receivers,
            fragments=self.turns * fragments, tiles=self.tiles,
        )  # fmt: skip

    def compute(
        self, name: str, term: str, factor: float, *, workers: float | None = None, evenness: float = 1.0
    ) -> Superstep:
        """Return a compute set with the cycles of a term; each turn launches it again.

        Args:
            name: Name of the compute set.
            term: Name of the term with its cycles.
            factor: Calibrated cycles as a multiple of the term.
            workers: Workers with work on a tile. Default: all.
            evenness: Mean work of the tiles at work, as a share of the busiest tile's work.
        """
        cycles = self.terms[term]
        return compute_step(
            name, self.target, vertex=self.turns * cycles + (self.turns - 1) * self.target.launch_cycles,
            calibrated=factor * self.turns * cycles, tiles=self.tiles, workers=workers, evenness=evenness,
        )  # fmt: skip


def work_space(target: IpuTarget, held: float = 0, share: float = MEMORY_SHARE) -> float:
    """Return the bytes of a tile that one operation may use, next to its arguments and results there.

    Args:
        target: The machine.
        held: Bytes of a tile that hold arguments and results.
        share: Share of a tile's memory that the operation may take.

    Example:
        >>> work_space(IpuTarget.bow()) > work_space(IpuTarget.bow(), held=300_000)
        True
    """
    return min(share * target.memory_per_tile, USABLE_SHARE * target.memory_per_tile - held)


def cheapest(
    splits: np.ndarray, cycles: np.ndarray, terms: Mapping[str, Any], target: IpuTarget, share: float = MEMORY_SHARE
) -> CheapestSplit:
    """Return the split of fewest cycles among the splits that fit in memory; among all splits if none fits.

    Args:
        splits: From `within`. int64[3, splits]
        cycles: Cycles of each split. float64[splits]
        terms: Numbers, or one number per split; `nbytes` are the bytes that a tile needs, `held` the bytes of arguments
            and results there.
        target: The machine.
        share: Share of a tile's memory that the operation may take.

    Example:
        >>> terms = {"nbytes": np.array([1e9, 20, 10])}
        >>> cheapest(np.array([[1, 2, 3]] * 3), np.array([1.0, 2.0, 3.0]), terms, IpuTarget.bow()).cuts
        (2, 2, 2)
    """
    fits = terms["nbytes"] <= work_space(target, terms.get("held", 0), share)
    best = int(np.argmin(np.where(fits, cycles, np.inf) if fits.any() else cycles))
    first, second, third = (int(cut[best]) for cut in splits)
    return CheapestSplit(
        cuts=(first, second, third),
        terms={name: float(term[best]) if np.ndim(term) else float(term) for name, term in terms.items()},
        considered=splits.shape[1],
        target=target,
    )


def largest_block(rows: int, columns: int, items: int, width: int, splits: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return rows, columns and items of the largest part, for splits over columns, rows and items.

    Example:
        >>> [int(part[0]) for part in largest_block(100, 7, 50, 4, np.array([[2], [3], [4]]))]
        [34, 4, 13]
    """
    grain = GRAIN_BYTES // width
    wide = np.minimum(columns, ceil_div(column_grains(columns, width), splits[0]) * grain)
    return ceil_div(rows, splits[1]), wide, ceil_div(items, splits[2])


def column_grains(columns: int, width: int) -> int:
    """Return the most parts that a row can be cut into.

    Example:
        >>> column_grains(7, width=4)
        4
    """
    return max(1, ceil_div(columns, GRAIN_BYTES // width))

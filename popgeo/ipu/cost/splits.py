"""All ways to cut three dimensions over the tiles, and the cheapest of them."""

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

# Poplar's own default for the share of a tile's memory that an operation may take while it runs.
MEMORY_SHARE = 0.6
USABLE_SHARE = 0.85  # of a tile: its code, stacks and exchange instructions take the rest
GRAIN_BYTES = 8  # a row is cut between words of that many bytes


@functools.lru_cache(maxsize=8)
def triples(num_tiles: int) -> np.ndarray:
    """Every (a, b, c) of whole numbers with a * b * c <= num_tiles. int32[3, splits]

    Example:
        >>> triples(2).T.tolist()
        [[1, 1, 1], [1, 1, 2], [1, 2, 1], [2, 1, 1]]
    """
    every, left = np.empty((0, 1), dtype=np.int32), np.array([num_tiles])
    for _ in range(3):  # a dimension is cut into 1 part up to the same number as the tiles allow that are left for it
        parts = np.arange(1, left.sum() + 1, dtype=np.int32) - np.repeat(left.cumsum(dtype=np.int32) - left, left)
        every = np.concatenate([np.repeat(every, left, axis=1), parts[np.newaxis]], dtype=np.int32)
        left = np.repeat(left, left) // parts
    every.setflags(write=False)
    return every


def within(num_tiles: int, first: int, second: int, third: int) -> np.ndarray:
    """The splits of `triples` that cut no dimension into more than that many parts. int64[3, splits]"""
    every = triples(num_tiles)
    limits = np.maximum([[first], [second], [third]], 1)
    return every[:, (every <= limits).all(axis=0)].astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class CheapestSplit:
    """The cheapest of many splits.

    Attributes:
        cuts: Parts of the three dimensions.
        terms: Its cycles and bytes, by name.
        considered: Splits that were compared.
        target: The machine.
        side_by_side: How many such pieces of work run at the same time, each on tiles of its own.
        turns: How many run one after the other.
    """

    cuts: tuple[int, int, int]
    terms: Mapping[str, float]
    considered: int
    target: IpuTarget
    side_by_side: int = 1
    turns: int = 1

    @property
    def tiles(self) -> int:
        """Tiles at work."""
        return self.side_by_side * math.prod(self.cuts)

    def plan(
        self, family: str, split: Mapping[str, int], steps: Sequence[Superstep], judged: Judgement, flops: int = 0
    ) -> Plan:
        """The plan of work for this split."""
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
        """Whether it needs no more than its share of a tile's memory."""
        return self.terms["nbytes"] <= work_space(self.target, self.terms["held"], share)

    def exchange(self, name: str, term: str, factor: float, *, receivers: int = 1, fragments: int = 1) -> Superstep:
        """An exchange that takes as long as a term says; each turn synchronises again.

        Args:
            name: What it does.
            term: Name of the term with its cycles; the term `<name>_bytes` has the bytes that a tile receives.
            factor: Fits its cycles to measurements.
            receivers: Tiles that get the same data.
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
        """A compute set that takes as long as a term says; each turn launches it again.

        Args:
            name: What it does.
            term: Name of the term with its cycles.
            factor: Fits its cycles to measurements.
            workers: Workers that have work on a tile; all when left out.
            evenness: Mean work of the tiles at work, as a share of the busiest one's.
        """
        cycles = self.terms[term]
        return compute_step(
            name, self.target, vertex=self.turns * cycles + (self.turns - 1) * self.target.launch_cycles,
            calibrated=factor * self.turns * cycles, tiles=self.tiles, workers=workers, evenness=evenness,
        )  # fmt: skip


def work_space(target: IpuTarget, held: float = 0, share: float = MEMORY_SHARE) -> float:
    """Bytes of a tile that one operation may use, next to what its arguments and results hold there.

    Args:
        target: The machine.
        held: Bytes of a tile that hold arguments and results.
        share: Of a tile's memory, that the operation may take.

    Example:
        >>> work_space(IpuTarget.bow()) > work_space(IpuTarget.bow(), held=300_000)
        True
    """
    return min(share * target.memory_per_tile, USABLE_SHARE * target.memory_per_tile - held)


def cheapest(
    splits: np.ndarray, cycles: np.ndarray, terms: Mapping[str, Any], target: IpuTarget, share: float = MEMORY_SHARE
) -> CheapestSplit:
    """The split of fewest cycles among those that fit in their share of memory; among all if none fits.

    Args:
        splits: From `within`. int64[3, splits]
        cycles: What to make least. float64[splits]
        terms: Numbers or arrays of them; `nbytes` is what a tile needs, `held` what lies there anyway.
        target: The machine.
        share: Of a tile's memory, that the operation may take.

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
    """Rows, columns and items of the largest part, where splits are of columns, rows, items.

    Example:
        >>> [int(part[0]) for part in largest_block(100, 7, 50, 4, np.array([[2], [3], [4]]))]
        [34, 4, 13]
    """
    grain = GRAIN_BYTES // width
    wide = np.minimum(columns, ceil_div(column_grains(columns, width), splits[0]) * grain)
    return ceil_div(rows, splits[1]), wide, ceil_div(items, splits[2])


def column_grains(columns: int, width: int) -> int:
    """Into how many parts a row can be cut at most.

    Example:
        >>> column_grains(7, width=4)
        4
    """
    return max(1, ceil_div(columns, GRAIN_BYTES // width))

"""All ways to cut three dimensions over the tiles, and the cheapest of them."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

# Poplar's own default for the share of a tile's memory that an operation may take while it runs.
MEMORY_SHARE = 0.6


@functools.lru_cache(maxsize=8)
def triples(num_tiles: int) -> np.ndarray:
    """Every (a, b, c) of whole numbers with a * b * c <= num_tiles. int32[3, splits]

    Example:
        >>> triples(2).T.tolist()
        [[1, 1, 1], [1, 1, 2], [1, 2, 1], [2, 1, 1]]
    """
    parts = []
    for first in range(1, num_tiles + 1):
        for second in range(1, num_tiles // first + 1):
            third = np.arange(1, num_tiles // (first * second) + 1, dtype=np.int32)
            parts.append(np.stack([np.full_like(third, first), np.full_like(third, second), third]))
    every = np.concatenate(parts, axis=1)
    every.setflags(write=False)
    return every


def within(num_tiles: int, first: int, second: int, third: int) -> np.ndarray:
    """The splits of `triples` that cut no dimension into more than so many parts. int64[3, splits]"""
    every = triples(num_tiles)
    limits = np.array([[first], [second], [third]])
    return every[:, (every <= limits).all(axis=0)].astype(np.int64)


def cheapest(cycles: np.ndarray, nbytes: np.ndarray, memory: float) -> int:
    """Which split takes the fewest cycles among those that fit in memory; among all where none fits.

    Example:
        >>> cheapest(np.array([1.0, 2.0, 3.0]), np.array([30, 20, 10]), memory=20)
        1
    """
    fits = nbytes <= memory
    return int(np.argmin(np.where(fits, cycles, np.inf) if fits.any() else cycles))


def at(terms: Mapping[str, Any], index: int) -> dict[str, float]:
    """The terms of one split."""
    return {name: float(term[index]) if np.ndim(term) else float(term) for name, term in terms.items()}

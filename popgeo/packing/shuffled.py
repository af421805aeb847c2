"""Random orders that are equal in compiled and interpreted code, bit for bit."""

from collections.abc import Iterator
from itertools import chain, count, pairwise

import numpy as np

from popgeo.native import library
from popgeo.packing.packs import Ids
from popgeo.random_numbers import uniform

_BLOCK = 8192


def uniform_stream(key: int) -> Iterator[int]:
    """Return the endless stream of 32-bit numbers for a key; see `uniform`."""
    return chain.from_iterable(uniform(key, start, _BLOCK).tolist() for start in count(0, _BLOCK))


def shuffled(num_graphs: int, key: int, first: int, then: int) -> Iterator[Ids]:
    """Yield a random order of 0 ... num_graphs - 1 in pieces, so that the first piece is available at once.

    Args:
        num_graphs: The number of ids.
        key: The key of the random order.
        first: Length of the first piece.
        then: Length of the pieces after it.

    Example:
        >>> sorted(np.concatenate(list(shuffled(9, key=1, first=2, then=4))).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """
    shuffle = library.function("popgeo_shuffle", "PqqqQ")
    # For the library, 0 means an id that has not moved; zeroed memory costs nothing until it is used.
    ids = np.zeros(num_graphs, np.int64) if shuffle else np.arange(num_graphs)
    for start, end in pairwise([0, *range(first, num_graphs, then), num_graphs]):
        if shuffle:
            shuffle(ids.ctypes.data, start, end, num_graphs, key)
        else:
            _shuffle(ids, start, end, key)
        yield ids[start:end]


def _shuffle(ids: Ids, start: int, end: int, key: int) -> None:
    """Run steps `start` to `end` of Fisher and Yates in place: place i swaps with a place from i on."""
    left = np.arange(len(ids) - start, len(ids) - end, -1, dtype=np.uint64)
    offsets = (uniform(key, start, end - start) * left >> np.uint64(32)).tolist()
    for i, offset in enumerate(offsets, start):
        ids[i], ids[i + offset] = ids[i + offset], ids[i]

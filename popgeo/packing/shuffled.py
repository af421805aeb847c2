"""Random orders that compiled and interpreted code draw alike, bit for bit."""

import ctypes
from collections.abc import Iterator
from itertools import chain, count, pairwise

import numpy as np

from popgeo.native import library
from popgeo.packing.packs import Ids
from popgeo.random_numbers import uniform

_BLOCK = 8192


def uniform_stream(key: int) -> Iterator[int]:
    """The 32-bit numbers of the stream that `key` names, one by one, without an end; see `uniform`."""
    return chain.from_iterable(uniform(key, start, _BLOCK).tolist() for start in count(0, _BLOCK))


def shuffled(num_graphs: int, key: int, first: int, then: int) -> Iterator[Ids]:
    """A random order of 0 ... num_graphs - 1, piece by piece, so that its beginning costs nothing.

    Args:
        num_graphs: How many ids there are.
        key: Names the order.
        first: Length of the first piece.
        then: Length of the pieces after it.

    Example:
        >>> sorted(np.concatenate(list(shuffled(9, key=1, first=2, then=4))).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """
    shuffle = library.function(
        "popgeo_shuffle", (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint64)
    )
    ids = np.zeros(num_graphs if shuffle else 0, np.int64)  # memory that costs nothing until it is used
    moved: dict[int, int] = {}  # without the library: the places that no longer hold their own number
    for start, end in pairwise([0, *range(first, num_graphs, then), num_graphs]):
        if shuffle:
            shuffle(ids.ctypes.data, start, end, num_graphs, key)
            yield ids[start:end]
        else:
            yield _shuffle(moved, start, end, num_graphs, key)


def _shuffle(moved: dict[int, int], start: int, end: int, num_graphs: int, key: int) -> Ids:
    """Steps `start` to `end` of Fisher and Yates: place i swaps with a place from i on."""
    left = np.arange(num_graphs - start, num_graphs - end, -1, dtype=np.uint64)
    places = (uniform(key, start, end - start) * left >> np.uint64(32)).tolist()
    piece = []
    for i, offset in enumerate(places, start):
        mine = moved.pop(i, i)
        if offset:
            piece.append(moved.get(i + offset, i + offset))
            moved[i + offset] = mine
        else:
            piece.append(mine)
    return np.array(piece, np.int64)

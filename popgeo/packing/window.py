"""Windowed exact fill: packs as full as the bound allows, and as random as a plain shuffle."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from popgeo.native import library
from popgeo.packing import exact_fill
from popgeo.packing.packs import Budget, Ids, Packs
from popgeo.packing.shuffled import shuffled
from popgeo.packing.sizes import fitting
from popgeo.random_numbers import new_key

_Chunk = tuple[Ids, NDArray[np.int64], Ids]  # ids, their sizes, and ids that can never fit
_FIRST_CHUNK = 4096  # graphs in addition to the window before the first packs
_CHUNK = 1 << 17
_STREAM_CHUNK = 256  # graphs read ahead of an iterator, beyond the window
_MAX_BUCKETS = 1 << 22


def window(
    sizes: ArrayLike,
    budget: Budget,
    *,
    window: int = 2048,
    generator: torch.Generator | None = None,
    skip: bool = False,
    shuffle: bool = True,
) -> Packs:
    """Pack graphs drawn at random from a window of pending ones, each pack closed by an exact fill.

    The dimension that needs the most packs is filled exactly, and the next dimension stays in proportion. Further
    dimensions only limit a pack. If three or more dimensions vary independently, `optimal` makes fuller packs.

    Args:
        sizes: Sizes of each graph. [num_graphs, num_dims] or [num_graphs]
        budget: The capacity of a pack.
        window: The number of pending graphs; 512 to 4096 is best, because the last packs of a larger window are poor.
        generator: Source of randomness. Default: torch's global generator. The same state gives the same packs.
        skip: Whether to leave out graphs that no pack can hold, and list them in `skipped`.
        shuffle: Whether graphs enter the window in random order. In the given order, packs are random only within the
            window.

    Returns:
        Packs with each graph exactly once. When a pack was closed, no pending graph fitted.

    Raises:
        ValueError: a graph can never fit and `skip` is False, or `window` is below 1.

    Example:
        >>> sizes = [3, 4, 5, 6, 7, 8] * 50
        >>> packs = window(sizes, Budget(sizes=(33,), num_graphs=9), generator=torch.Generator().manual_seed(0))
        >>> len(packs), sorted(packs.indices.tolist()) == list(range(300))
        (50, True)
    """
    return Packs.concatenate(iter_window(sizes, budget, window=window, generator=generator, skip=skip, shuffle=shuffle))


def iter_window(
    sizes: ArrayLike | Iterator[Sequence[int]],
    budget: Budget,
    *,
    window: int = 2048,
    generator: torch.Generator | None = None,
    skip: bool = False,
    shuffle: bool = True,
) -> Iterator[Packs]:
    """Yield the packs of `window` in parts: the first packs at once, the rest while training runs.

    Args:
        sizes: As for `window`; or an iterator over the sizes of one graph after the other, as of an iterable dataset.
            Ids then count the graphs of the iterator. The iterator is read only as far as the packs need.
        budget: The capacity of a pack.
        window: The number of pending graphs.
        generator: Source of randomness. Default: torch's global generator.
        skip: Whether to leave out graphs that no pack can hold.
        shuffle: Whether graphs enter the window in random order; iterators keep their order.

    Raises:
        ValueError: as `window`.

    Example:
        >>> sizes = iter([(3, 6), (4, 8), (5, 10)])
        >>> [len(packs) for packs in iter_window(sizes, Budget(sizes=(7, 16), num_graphs=2))]
        [2]
    """
    if window < 1:
        raise ValueError(f"window is {window}; at least 1 graph must be pending.")
    key = new_key(generator)
    if isinstance(sizes, Iterator):
        return _pack(_read(sizes, budget, window, skip), budget, window, key)
    table, ids, skipped = fitting(sizes, budget, skip=skip, narrow=True)
    window = max(1, min(window, len(table)))
    chunks = _enter(np.ascontiguousarray(table), ids, skipped, window, key ^ 1 if shuffle else None)
    return _pack(chunks, budget, window, key)


def _enter(table: NDArray[np.int64], ids: Ids | None, skipped: Ids, window: int, key: int | None) -> Iterator[_Chunk]:
    """Yield all graphs in pieces, in random order or, without a key, in their own order."""
    if len(skipped):
        yield skipped[:0], table[:0], skipped
    given = (np.arange(start, min(start + _CHUNK, len(table))) for start in range(0, len(table), _CHUNK))
    random = None if key is None else shuffled(len(table), key, first=window + _FIRST_CHUNK, then=_CHUNK)
    for order in random or given:
        rows = table.take(order, axis=0).astype(np.int64, copy=False)
        yield order if ids is None else ids[order], rows, skipped[:0]


def _read(sizes: Iterable[Sequence[int]], budget: Budget, window: int, skip: bool) -> Iterator[_Chunk]:
    """Yield the graphs of an iterator in its order, read a little ahead."""
    left = iter(sizes)
    start, ahead = 0, window + _STREAM_CHUNK
    while rows := list(islice(left, ahead)):
        try:
            table, ids, skipped = fitting(np.array(rows), budget, skip=skip)
        except ValueError as error:
            raise ValueError(f"{error} (Counted from graph {start} of the iterator.)") from None
        yield (np.arange(len(rows)) if ids is None else ids) + start, table, skipped + start
        start, ahead = start + len(rows), _STREAM_CHUNK


def _pack(chunks: Iterator[_Chunk], budget: Budget, window: int, key: int) -> Iterator[Packs]:
    """Push chunk after chunk through a window, with the scarcest dimensions first: the window fills these best."""
    filler: _CompiledWindow | exact_fill.Window | None = None
    given = order = list(range(len(budget.sizes)))
    for ids, table, skipped in chunks:
        if filler is None and len(ids):
            order = _by_scarcity([int(column.sum()) for column in table.T], budget)
            filler = _open(replace(budget, sizes=tuple(budget.sizes[d] for d in order)), window, key)
        rows = table if order == given else table.take(order, axis=1)
        packs = filler.push(ids, rows, last=False) if filler else Packs.from_lists([])
        if len(packs) or len(skipped):
            yield replace(packs, skipped=skipped)
    if filler and len(packs := filler.push(np.empty(0, np.int64), np.empty((0, len(order)), np.int64), last=True)):
        yield packs


def _by_scarcity(totals: Sequence[int], budget: Budget) -> list[int]:
    """Sort the dimensions by needed packs, most first; leads of at most 2 % over dimension 0 are ignored."""
    need = [Fraction(total, limit) if limit else Fraction(0) for total, limit in zip(totals, budget.sizes, strict=True)]
    order = sorted(range(len(need)), key=lambda d: -need[d])
    return order if need[order[0]] * 50 > need[0] * 51 else [0, *(d for d in order if d)]


def _open(budget: Budget, window: int, key: int) -> "_CompiledWindow | exact_fill.Window":
    """Return a compiled window, or an interpreted window without the library or if 64 bits could overflow."""
    largest = max(budget.sizes) * max(budget.sizes[0], 1) * window * 4
    fits = largest < 2**62 and window < 2**30 and budget.sizes[0] < _MAX_BUCKETS
    new = library.function("popgeo_window_new", "iPqiQ", "P") if fits else None
    return _CompiledWindow(new, budget, window, key) if new else exact_fill.Window(budget, window, key)


class _CompiledWindow:
    """The compiled version of `exact_fill.Window`."""

    def __init__(self, new: Callable[..., int | None], budget: Budget, window: int, key: int) -> None:
        # The library has popgeo_window_new, so it has these functions, too.
        self._push: Any = library.function("popgeo_window_push", "PPPqi", "q")
        self._num_ids: Any = library.function("popgeo_window_num_ids", "P", "q")
        self._read: Any = library.function("popgeo_window_read", "PPP")
        free: Any = library.function("popgeo_window_free", "P")
        limits = np.array(budget.sizes, np.int64)
        self._handle = new(len(limits), limits.ctypes.data, min(budget.num_graphs, 2**62), window, key)
        if not self._handle:
            raise MemoryError(f"No memory for a window of {window} graphs; pass a smaller window.")
        weakref.finalize(self, free, self._handle)

    def push(self, ids: Ids, table: NDArray[np.int64], *, last: bool) -> Packs:
        ids, table = np.ascontiguousarray(ids), np.ascontiguousarray(table)
        num_packs = self._push(self._handle, ids.ctypes.data, table.ctypes.data, len(ids), last)
        if num_packs < 0:
            raise MemoryError("Memory ran out while packing; pass a smaller window.")
        packed, ptr = np.empty(self._num_ids(self._handle), np.int64), np.empty(num_packs + 1, np.int64)
        self._read(self._handle, packed.ctypes.data, ptr.ctypes.data)
        return Packs(packed, ptr)

"""Types of packing: the capacity of a batch, and the graphs of each batch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The capacity of a pack for real graphs, without the slots for padding.

    Args:
        sizes: The capacity in each dimension: nodes, edges, or one entry per node and edge type.
        num_graphs: The largest number of graphs of a pack.

    Raises:
        ValueError: there is no dimension, a size is negative, or a pack could hold no graph.

    Example:
        >>> Budget(sizes=(575, 1200), num_graphs=47).sizes
        (575, 1200)
    """

    sizes: tuple[int, ...]
    num_graphs: int

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 0:
            raise ValueError(f"Budget.sizes is {self.sizes}; give at least one dimension, and no negative size.")
        if self.num_graphs < 1:
            raise ValueError(f"Budget.num_graphs is {self.num_graphs}; a pack must be able to hold at least 1 graph.")


@dataclass(frozen=True, eq=False)
class Packs(Sequence[Ids]):
    """The graphs of each batch: a sequence of arrays of graph ids.

    Args:
        indices: Graph ids, pack after pack. int64 [num_graphs]
        ptr: The start of each pack in `indices`, and the end. int64 [num_packs + 1]
        skipped: Ids of the graphs that no pack can hold. int64 [num_skipped]

    Example:
        >>> packs = Packs(np.array([2, 0, 1]), np.array([0, 2, 3]))
        >>> len(packs), packs[0].tolist(), packs[-1].tolist()
        (2, [2, 0], [1])
    """

    indices: Ids
    ptr: Ids
    skipped: Ids = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __iter__(self) -> Iterator[Ids]:
        return (self.indices[start:stop] for start, stop in pairwise(self.ptr.tolist()))

    @overload
    def __getitem__(self, index: int) -> Ids: ...
    @overload
    def __getitem__(self, index: slice) -> "Packs": ...

    def __getitem__(self, index: int | slice) -> "Ids | Packs":
        """Return a view of the ids of one pack, or the packs of a slice (a view if its step is 1)."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self.ptr) - 1)
            if step != 1:
                return self.take(np.arange(start, stop, step))
            ptr = self.ptr[start : max(start, stop) + 1]
            return Packs(self.indices[ptr[0] : ptr[-1]], ptr - ptr[0], self.skipped)
        if not -len(self) <= index < len(self):
            raise IndexError(f"Pack {index} was asked for; there are {len(self)}.")
        start = index % len(self)
        return self.indices[self.ptr[start] : self.ptr[start + 1]]

    def take(self, numbers: Ids) -> "Packs":
        """Return some of the packs, in the given order.

        Args:
            numbers: Numbers of packs. int64 [number of packs]

        Example:
            >>> Packs(np.array([2, 0, 1]), np.array([0, 2, 3])).take(np.array([1, 0])).indices
            array([1, 2, 0])
        """
        lengths, starts = np.diff(self.ptr).take(numbers), self.ptr.take(numbers)
        ptr = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(starts - ptr[:-1], lengths)
        places += np.arange(len(places))
        return Packs(self.indices.take(places), ptr, self.skipped)

    @property
    def num_graphs(self) -> int:
        """The number of graphs of all packs together."""
        return len(self.indices)

    def __repr__(self) -> str:
        skipped = f"; {len(self.skipped):,} skipped" if len(self.skipped) else ""
        mean = self.num_graphs / max(len(self), 1)
        return f"{type(self).__name__}({self.num_graphs:,} graphs in {len(self):,} packs, {mean:.1f} per pack{skipped})"

    @staticmethod
    def single(num_graphs: int) -> "Packs":
        """Return one pack of the graphs 0 to `num_graphs - 1`.

        Example:
            >>> Packs.single(3)[0]
            array([0, 1, 2])
        """
        return Packs(np.arange(num_graphs), np.array([0, num_graphs]))

    @staticmethod
    def from_lists(packs: Iterable[ArrayLike], skipped: ArrayLike = ()) -> "Packs":
        """Return packs from one sequence of ids per pack, for packing functions of users.

        Raises:
            ValueError: a pack is not a sequence of integers.

        Example:
            >>> Packs.from_lists([[2, 0], [1]]).ptr
            array([0, 2, 3])
        """
        parts = [whole_numbers(pack) for pack in packs]
        if any(part.ndim != 1 for part in parts):
            raise ValueError("Each batch is a list of graph numbers; pass batches such as [[0, 1], [2]].")
        ptr = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
        return Packs(np.concatenate([np.empty(0, np.int64), *parts]), ptr, np.asarray(skipped, np.int64))

    @staticmethod
    def concatenate(chunks: "Iterable[Packs]") -> "Packs":
        """Return the packs of several plans as one plan.

        Example:
            >>> Packs.concatenate([Packs.from_lists([[0, 1]]), Packs.from_lists([[3], [2]])]).ptr
            array([0, 2, 3, 4])
        """
        chunks = [Packs.from_lists([]), *chunks]
        lengths = np.concatenate([np.diff(chunk.ptr) for chunk in chunks])
        ptr = np.concatenate([[0], np.cumsum(lengths)])
        indices = np.concatenate([chunk.indices for chunk in chunks])
        return Packs(indices, ptr, np.concatenate([chunk.skipped for chunk in chunks]))


def totals_of_packs(sizes: NDArray[np.int64], ids: Ids, ptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the total sizes of the graphs of each pack.

    Args:
        sizes: Sizes of each graph. int64 [num_graphs, num_dims]
        ids: Graphs, pack after pack. int64 [num_packed]
        ptr: The start of each pack in `ids`, and the end. int64 [num_packs + 1]

    Returns:
        Sums of sizes. int64 [num_packs, num_dims]

    Example:
        >>> totals_of_packs(np.array([[1, 2], [3, 4], [5, 6]]), np.array([2, 0, 1]), np.array([0, 2, 3])).tolist()
        [[6, 8], [3, 4]]
    """
    packed = sizes.take(ids, axis=0)
    totals = np.empty((len(ptr) - 1, sizes.shape[1]), np.int64)
    running = np.zeros(len(ids) + 1, np.int64)
    # Column by column, as in `fitting`: each epoch of a loader calls this, perhaps with millions of graphs.
    for dim in range(sizes.shape[1]):
        np.cumsum(packed[:, dim], out=running[1:])
        totals[:, dim] = running[ptr[1:]] - running[ptr[:-1]]
    return totals


def whole_numbers(ids: ArrayLike, items: str = "Graphs") -> Ids:
    """Check that items are chosen by integers, and return these, int64 [num_ids].

    Raises:
        ValueError: the numbers are not integers; a mask is not allowed.
    """
    given = np.asarray(ids)
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(f"{items} are chosen by {given.dtype}; pass their numbers: np.flatnonzero(mask) of a mask.")
    return given.astype(np.int64, copy=False)

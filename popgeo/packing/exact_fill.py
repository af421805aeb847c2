"""Windowed exact fill in plain Python, as the reference for the same algorithm in native/csrc/packing.cpp.

A window holds the pending graphs. A pack draws from it at random while there is room for more than 2.5 mean graphs.
Then the graph or the pair of graphs that leaves the least room closes the pack; each such choice is as likely as it
would be among random draws. To keep the second size in proportion to the window, each of the last graphs of a pack is
chosen among a few candidates. All decisions use whole numbers, so both implementations agree.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from operator import add, sub
from typing import Any

import numpy as np
from numpy.typing import NDArray

from popgeo.packing.packs import Budget, Ids, Packs
from popgeo.packing.shuffled import uniform_stream

DRAWS = 32  # draws for a graph that fits, before a pack is closed
CANDIDATES = 4  # graphs compared per choice, to keep edges in proportion to nodes
STEERED = 8  # candidates are compared when there is room for at most this many mean graphs
COMPLETIONS = 4  # pairs of sizes that are tried before the largest fitting graph closes a pack
_Options = tuple[list[tuple[int, int]], list[int]]


class Window:
    """The pending graphs and the pack in progress; `push` takes graphs and returns closed packs.

    Args:
        budget: The capacity of a pack; its first size is filled exactly.
        window: The largest number of pending graphs.
        key: The key of the random numbers.
    """

    def __init__(self, budget: Budget, window: int, key: int) -> None:
        self.budget, self.window = budget, window
        self.draw = uniform_stream(key).__next__
        self.ids: list[int] = []
        self.sizes: list[tuple[int, ...]] = []
        self.firsts: list[int] = []  # the first sizes, for searching
        self.counts: Counter[int] = Counter()  # first size -> number of pending graphs
        self.pending = [0] * len(budget.sizes)  # sizes of all pending graphs together
        self.holes: list[int] = []  # positions to fill before the next choice
        self.left, self.graphs_left = list(budget.sizes), budget.num_graphs
        self.pack: list[int] = []

    def push(self, ids: Ids, table: NDArray[np.int64], *, last: bool) -> Packs:
        """Add graphs and return the closed packs; `last` closes all packs."""
        source = zip(ids.tolist(), map(tuple, table.tolist()), strict=True)
        done: list[int] = []
        ptr = [0]
        while self._refill(source, last) or (last and self.pack):
            chosen = self._draw() or self._complete()
            self._take(chosen)
            if not chosen or not self.graphs_left:
                done += self.pack
                ptr.append(len(done))
                self.pack, self.left, self.graphs_left = [], list(self.budget.sizes), self.budget.num_graphs
        return Packs(np.array(done, np.int64), np.array(ptr, np.int64))

    def _refill(self, source: Iterator[tuple[int, tuple[int, ...]]], last: bool) -> bool:
        """Fill the window; return False if this needs graphs of a later push, or if no graph is left."""
        while self.holes or len(self.ids) < self.window:
            graph = next(source, None)
            if graph is None:
                if not last:
                    return False
                columns: tuple[list[Any], ...] = (self.ids, self.sizes, self.firsts)
                for hole, column in product(reversed(self.holes), columns):
                    column[hole] = column[-1]
                    column.pop()
                self.holes = []
                break
            position, (number, sizes) = self.holes.pop() if self.holes else len(self.ids), graph
            here = slice(position, position + 1)  # at the end this appends
            self.ids[here], self.sizes[here], self.firsts[here] = [number], [sizes], [sizes[0]]
            self.counts[sizes[0]] += 1
            self.pending = list(map(add, self.pending, sizes))
        return bool(self.ids)

    def _take(self, chosen: tuple[int, ...]) -> None:
        """Move graphs from the window into the pack, leaving holes."""
        self.holes = sorted(chosen)
        for position in self.holes:
            sizes = self.sizes[position]
            self.pack.append(self.ids[position])
            self.pending = list(map(sub, self.pending, sizes))
            self.left = list(map(sub, self.left, sizes))
            self.counts[sizes[0]] -= 1
            if not self.counts[sizes[0]]:
                del self.counts[sizes[0]]
        self.graphs_left -= len(chosen)

    def _draw(self) -> tuple[int, ...]:
        """Return a random graph that fits if there is room for over 2.5 mean graphs, or if the pack is empty."""
        count = len(self.ids)
        room, mean = 2 * self.left[0] * count, self.pending[0]
        if self.pack and room <= 5 * mean:
            return ()
        steer = len(self.left) > 1 and bool(self.pack) and room <= 2 * STEERED * mean
        best = found = 0
        best_score = math.inf
        for _ in range(DRAWS):
            position = self.draw() * count >> 32
            score = self._score((position,), steer)
            if score is None:
                continue
            if not steer:
                return (position,)
            if score < best_score:
                best, best_score = position, score
            found += 1
            if found == CANDIDATES:
                break
        return (best,) if found else ()

    def _score(self, chosen: tuple[int, ...], steer: bool) -> int | None:
        """Return the distance of the pack from the window's ratio of second to first size; None if it is too full."""
        rest = self.left
        for position in chosen:
            rest = list(map(sub, rest, self.sizes[position]))
        if min(rest) < 0:
            return None
        if not steer:
            return 0
        first, second, *_ = map(sub, self.budget.sizes, rest)
        return abs(second * self.pending[0] - first * self.pending[1])

    def _complete(self) -> tuple[int, ...]:
        """Return the graph or pair that leaves the least room; an empty tuple if no pending graph fits."""
        room, present = self.left[0], sorted(self.counts)
        if not present or room < present[0]:
            return ()
        options, weights = completions(room, present, self.counts, pair=self.graphs_left > 1)
        total = sum(weights)
        for _ in range(COMPLETIONS):
            ticket = self.draw() * total >> 32
            chosen = 0
            while ticket >= weights[chosen]:
                ticket -= weights[chosen]
                chosen += 1
            if positions := self._best(*options[chosen]):
                return positions
        fitting = [position for position in range(len(self.ids)) if self._score((position,), False) is not None]
        return (max(fitting, key=self.firsts.__getitem__),) if fitting else ()

    def _best(self, small: int, large: int) -> tuple[int, ...]:
        """Return the graph or pair with the best score among a few pending graphs that have these first sizes."""
        steer = len(self.left) > 1
        candidates = CANDIDATES if steer else 1
        if small == large:
            members = self._some(small, 2 * candidates)
            half = len(members) // 2
            parts = [members[:half], members[half:]]
        else:
            others = [self._some(large, candidates)] if large >= 0 else []
            parts = [self._some(small, candidates), *others]
        scores = [(score, chosen) for chosen in product(*parts) if (score := self._score(chosen, steer)) is not None]
        return min(scores, key=lambda scored: scored[0])[1] if scores else ()

    def _some(self, first: int, count: int) -> list[int]:
        """Return the next few pending graphs of this first size, from a random position on."""
        start = self.draw() * len(self.ids) >> 32
        found: list[int] = []
        for begin, end in ((start, len(self.ids)), (0, start)):
            try:
                while len(found) < count:
                    begin = self.firsts.index(first, begin, end) + 1
                    found.append(begin - 1)
            except ValueError:  # no graph up to the end
                continue
        return found


def completions(room: int, present: Sequence[int], counts: Mapping[int, int], *, pair: bool) -> _Options:
    """Return the sizes that leave the least room, weighted by their probability in two random draws.

    Args:
        room: The rest of the budget, at least the smallest size.
        present: Sizes of pending graphs, in rising order.
        counts: The number of pending graphs of each size.
        pair: Whether two graphs are allowed.

    Returns:
        Pairs of sizes, smaller first, or one size and -1; and a weight for each.

    Example:
        >>> completions(10, [3, 5, 7, 10], {3: 4, 5: 2, 7: 1, 10: 1}, pair=True)
        ([(10, -1), (3, 7), (5, 5)], [8, 8, 2])
    """
    last = bisect_right(present, room) - 1
    best = present[last]
    options, weights = [(best, -1)], [counts[best] * sum(counts.values())]
    if not pair:
        return options, weights
    for small in present:
        rest = room - small
        if small > rest:
            break
        while present[last] > rest:  # a larger first size needs a smaller second size
            last -= 1
        large = present[last]
        if small + large < best:
            continue
        num_small = counts[small]
        if weight := 2 * num_small * counts[large] if small < large else num_small * (num_small - 1):
            if small + large > best:
                best, options, weights = small + large, [], []
            options.append((small, large))
            weights.append(weight)
    return options, weights

"""Windowed exact fill: the definition, in plain Python; `Window` in native/csrc/packing.cpp takes the same decisions.

A window holds the pending graphs. A pack draws from it at random while there is room for more than 2.5 mean graphs,
then closes with the graph or the pair of graphs whose size comes closest to what is left, each such choice as likely as
drawing it would have been. The second size is kept in proportion to the window's by choosing the last graphs of a pack
among a few candidates each. All decisions are made on whole numbers, so they do not depend on who computes.
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

DRAWS = 32  # tries to draw a graph that fits before a pack is closed
CANDIDATES = 4  # graphs compared per choice, to keep edges in proportion to nodes
STEERED = 8  # room for that many mean graphs, from which on candidates are compared
COMPLETIONS = 4  # pairs of sizes tried before a pack is closed by its largest fitting graph
_Options = tuple[list[tuple[int, int]], list[int]]


class Window:
    """The pending graphs and the pack in progress; graphs go in with `push`, closed packs come out.

    Args:
        budget: What one pack may hold; its first size is the one that is filled exactly.
        window: The most graphs pending.
        key: Names the random numbers.
    """

    def __init__(self, budget: Budget, window: int, key: int) -> None:
        self.budget, self.window = budget, window
        self.draw = uniform_stream(key).__next__
        self.ids: list[int] = []
        self.sizes: list[tuple[int, ...]] = []
        self.firsts: list[int] = []  # the first size once more, to be searched for
        self.counts: Counter[int] = Counter()  # first size -> how many graphs are pending
        self.pending = [0] * len(budget.sizes)  # sizes of all pending graphs together
        self.holes: list[int] = []  # positions to fill before the next choice
        self.left, self.graphs_left = list(budget.sizes), budget.num_graphs
        self.pack: list[int] = []

    def push(self, ids: Ids, table: NDArray[np.int64], *, last: bool) -> Packs:
        """Take in graphs, and give out the packs that could be closed; `last` closes all."""
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
        """Fill the window; False when that takes graphs of a later push, or when no graph is left at all."""
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
            here = slice(position, position + 1)  # behind the last one there is nothing to replace
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
        """A random graph that fits, while there is room for over 2.5 mean ones; the first of a pack in any case."""
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
        """How far the pack would be from the window's proportion of the second size to the first; None if too full."""
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
        """The graph or pair that comes closest to what is left; nothing when no pending graph fits."""
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
        """Of a few graphs of these first sizes the one, or the pair, that fits in best proportion."""
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
        """The next few pending graphs of this first size, from a random position on."""
        start = self.draw() * len(self.ids) >> 32
        found: list[int] = []
        for begin, end in ((start, len(self.ids)), (0, start)):
            try:
                while len(found) < count:
                    begin = self.firsts.index(first, begin, end) + 1
                    found.append(begin - 1)
            except ValueError:  # none up to the end
                continue
        return found


def completions(room: int, present: Sequence[int], counts: Mapping[int, int], *, pair: bool) -> _Options:
    """The sizes that leave the least of the room, and how likely two random draws would yield each.

    Args:
        room: The rest of the budget, at least the smallest size.
        present: Sizes of pending graphs, in rising order.
        counts: How many graphs of each there are.
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
        while present[last] > rest:  # the larger one, the smaller its partner
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

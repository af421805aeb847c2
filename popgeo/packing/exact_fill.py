"""Windowed exact fill: the definition, in plain Python; `Window` in native/csrc/packing.cpp takes the same decisions.

A window holds the pending graphs. A pack draws from it at random while there is room for more than 2.5 mean graphs,
then closes with the graph or the pair of graphs whose size comes closest to what is left, each such choice as likely as
drawing it would have been. The second size is kept in proportion to the window's by choosing the last graphs of a pack
among a few candidates each. All decisions are made on whole numbers, so they do not depend on who computes.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from popgeo.packing.completions import completions
from popgeo.packing.packs import Budget, Ids, Packs
from popgeo.packing.shuffled import uniform_stream

DRAWS = 32  # tries to draw a graph that fits before a pack is closed
CANDIDATES = 4  # graphs compared per choice, to keep edges in proportion to nodes
STEERED = 8  # room for that many mean graphs, from which on candidates are compared
COMPLETIONS = 4  # pairs of sizes tried before a pack is closed by its largest fitting graph


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
        # All sizes of a graph sit in one int, a field each. Fields are wide enough for the sum of a window and have a
        # guard bit on top, so that one subtraction compares all of them: a field that borrows clears its guard bit.
        widths = [(limit * window).bit_length() + 1 for limit in budget.sizes]
        self.shifts = [sum(widths[:i]) for i in range(len(widths))]
        self.masks = [(1 << (width - 1)) - 1 for width in widths]
        self.guard = sum(1 << (shift + width - 1) for shift, width in zip(self.shifts, widths, strict=True))
        self.full = self.guard + sum(n << shift for n, shift in zip(budget.sizes, self.shifts, strict=True))
        self.compact = sum(widths) < 63
        self.ids: list[int] = []
        self.sizes: list[int] = []
        self.firsts: list[int] = []  # the first size once more, to be searched for
        self.counts: dict[int, int] = {}  # first size -> how many graphs are pending
        self.present: list[int] = []  # first sizes of which there is one at least, sorted
        self.pending = 0  # sizes of all pending graphs together
        self.holes: list[int] = []  # positions to fill before the next choice
        self.left, self.graphs_left = self.full, budget.num_graphs
        self.pack: list[int] = []

    def push(self, ids: Ids, table: NDArray[np.int64], *, last: bool) -> Packs:
        """Take in graphs, and give out the packs that could be closed; `last` closes all."""
        packed = table if self.compact else table.astype(object)
        sizes = np.bitwise_or.reduce([packed[:, d] << shift for d, shift in enumerate(self.shifts)]).tolist()
        source = zip(ids.tolist(), sizes, table[:, 0].tolist(), strict=True)
        done: list[int] = []
        ptr = [0]
        while self._refill(source, last):
            chosen = self._draw() or self._complete()
            if chosen:
                self._take(chosen)
            if not chosen or not self.graphs_left:
                done += self.pack
                ptr.append(len(done))
                self.pack, self.left, self.graphs_left = [], self.full, self.budget.num_graphs
        if last and self.pack:
            done += self.pack
            ptr.append(len(done))
            self.pack = []
        return Packs(np.array(done, np.int64), np.array(ptr, np.int64))

    def _refill(self, source: Iterator[tuple[int, int, int]], last: bool) -> bool:
        """Fill the window; False when that takes graphs of a later push, or when no graph is left at all."""
        while self.holes or len(self.ids) < self.window:
            graph = next(source, None)
            if graph is None:
                if not last:
                    return False
                for hole in reversed(self.holes):
                    self._close_up(hole)
                self.holes = []
                break
            self._add(self.holes.pop() if self.holes else len(self.ids), *graph)
        return bool(self.ids)

    def _add(self, position: int, graph: int, size: int, first: int) -> None:
        if position == len(self.ids):
            self.ids.append(graph)
            self.sizes.append(size)
            self.firsts.append(first)
        else:
            self.ids[position], self.sizes[position], self.firsts[position] = graph, size, first
        self.pending += size
        if number := self.counts.get(first, 0):
            self.counts[first] = number + 1
        else:
            self.counts[first] = 1
            insort(self.present, first)

    def _close_up(self, hole: int) -> None:
        """Move the last pending graph into a hole."""
        graph, size, first = self.ids.pop(), self.sizes.pop(), self.firsts.pop()
        if hole < len(self.ids):
            self.ids[hole], self.sizes[hole], self.firsts[hole] = graph, size, first

    def _take(self, chosen: tuple[int, ...]) -> None:
        """Move graphs from the window into the pack, leaving holes."""
        self.holes = sorted(chosen)
        for position in self.holes:
            self.pack.append(self.ids[position])
            self.pending -= self.sizes[position]
            self.left -= self.sizes[position]
            self._forget(self.firsts[position])
        self.graphs_left -= len(chosen)

    def _forget(self, first: int) -> None:
        self.counts[first] -= 1
        if not self.counts[first]:
            del self.counts[first], self.present[bisect_left(self.present, first)]

    def _draw(self) -> tuple[int, ...]:
        """A random graph that fits, while there is room for over 2.5 mean ones; the first of a pack in any case."""
        count = len(self.ids)
        room, mean = 2 * (self.left & self.masks[0]) * count, self.pending & self.masks[0]
        if self.pack and room <= 5 * mean:
            return ()
        steer = len(self.masks) > 1 and bool(self.pack) and room <= 2 * STEERED * mean
        used = self.full - self.left
        best = found = 0
        best_score = math.inf
        for _ in range(DRAWS):
            position = self.draw() * count >> 32
            size = self.sizes[position]
            if (self.left - size) & self.guard != self.guard:
                continue
            if not steer:
                return (position,)
            score = abs(self._drift(used + size))
            if score < best_score:
                best, best_score = position, score
            found += 1
            if found == CANDIDATES:
                break
        return (best,) if found else ()

    def _drift(self, size: int) -> int:
        """How far sizes are from the window's proportion of the second to the first; 0 is in proportion."""
        pending, mask, shift, other = self.pending, self.masks[0], self.shifts[1], self.masks[1]
        return (size >> shift & other) * (pending & mask) - (size & mask) * (pending >> shift & other)

    def _complete(self) -> tuple[int, ...]:
        """The graph or pair that comes closest to what is left; nothing when no pending graph fits."""
        room = self.left & self.masks[0]
        if room < self.present[0]:
            return ()
        options, weights = completions(room, self.present, self.counts, pair=self.graphs_left > 1)
        total = sum(weights)
        for _ in range(COMPLETIONS):
            ticket = self.draw() * total >> 32
            chosen = 0
            while ticket >= weights[chosen]:
                ticket -= weights[chosen]
                chosen += 1
            if positions := self._best(*options[chosen]):
                return positions
        left, guard, firsts = self.left, self.guard, self.firsts
        fitting = [position for position, size in enumerate(self.sizes) if (left - size) & guard == guard]
        return (max(fitting, key=firsts.__getitem__),) if fitting else ()

    def _best(self, small: int, large: int) -> tuple[int, ...]:
        """Of a few graphs of these first sizes the one, or the pair, that fits in best proportion."""
        steer = len(self.masks) > 1
        candidates = CANDIDATES if steer else 1
        others: list[int] = []
        if large < 0:
            members = self._some(small, candidates)
        elif small == large:
            members = self._some(small, 2 * candidates)
            half = len(members) // 2
            members, others = members[:half], members[half:]
        else:
            others = self._some(large, candidates)
            members = self._some(small, candidates)
        left, sizes, guard = self.left, self.sizes, self.guard
        pairs = [(p, q) for p in members for q in others] if large >= 0 else [(p,) for p in members]
        best: tuple[int, ...] = ()
        best_score = math.inf
        for pair in pairs:
            rest = left - sum([sizes[position] for position in pair])
            if rest & guard == guard:
                score = abs(self._drift(self.full - rest)) if steer else 0
                if score < best_score:
                    best, best_score = pair, score
        return best

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

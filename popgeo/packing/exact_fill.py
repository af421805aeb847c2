"""Windowed exact fill: the definition, in plain Python; `Window` in native/csrc/packing.cpp takes the same decisions.

A window holds the pending graphs. A pack draws from it at random while there is room for more than 2.5 mean graphs,
then closes with the graph or the pair of graphs whose size comes closest to what is left, each such choice as likely as
drawing it would have been. Sizes other than the first are kept in proportion to the window's by choosing among a few
candidates. All decisions are made on whole numbers, so they do not depend on who computes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from popgeo.packing.draws import uniform_stream
from popgeo.packing.packs import Budget, Ids, Packs

DRAWS = 8  # tries to draw a graph that fits before a pack is closed
CANDIDATES = 3  # graphs compared per choice, to keep edges in proportion to nodes
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
        widths = [(limit * window).bit_length() + 2 for limit in budget.sizes]
        self.shifts = [sum(widths[:i]) for i in range(len(widths))]
        self.masks = [(1 << (width - 1)) - 1 for width in widths]
        self.guard = sum(1 << (shift + width - 1) for shift, width in zip(self.shifts, widths, strict=True))
        self.full = self.guard + sum(n << shift for n, shift in zip(budget.sizes, self.shifts, strict=True))
        self.compact = sum(widths) < 63
        self.ids: list[int] = []
        self.sizes: list[int] = []
        self.place: list[int] = []  # where in its bucket each pending graph stands
        self.buckets: dict[int, list[int]] = {}  # first size -> positions of pending graphs
        self.present: list[int] = []  # first sizes of pending graphs, sorted
        self.pending = 0  # sizes of all pending graphs together
        self.holes: list[int] = []  # positions to fill before the next choice
        self.left, self.graphs_left = self.full, budget.num_graphs
        self.pack: list[int] = []

    def push(self, ids: Ids, table: NDArray[np.int64], *, last: bool) -> Packs:
        """Take in graphs, and give out the packs that could be closed; `last` closes all."""
        packed = table if self.compact else table.astype(object)
        sizes = np.bitwise_or.reduce([packed[:, d] << shift for d, shift in enumerate(self.shifts)]).tolist()
        source = zip(ids.tolist(), sizes, strict=True)
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

    def _refill(self, source: Iterator[tuple[int, int]], last: bool) -> bool:
        """Fill the window; False when that takes graphs of a later push, or when no graph is left at all."""
        while self.holes or len(self.ids) < self.window:
            graph = next(source, None)
            if graph is not None:
                self._add(self.holes.pop() if self.holes else len(self.ids), *graph)
            elif not last:
                return False
            elif self.holes:
                self._close_up(self.holes.pop())
            else:
                break
        return bool(self.ids)

    def _add(self, position: int, graph: int, size: int) -> None:
        bucket = self.buckets.setdefault(first := size & self.masks[0], [])
        if not bucket:
            insort(self.present, first)
        if position == len(self.ids):
            self.ids.append(graph)
            self.sizes.append(size)
            self.place.append(len(bucket))
        else:
            self.ids[position], self.sizes[position], self.place[position] = graph, size, len(bucket)
        bucket.append(position)
        self.pending += size

    def _close_up(self, hole: int) -> None:
        """Move the last pending graph into a hole."""
        graph, size, place = self.ids.pop(), self.sizes.pop(), self.place.pop()
        if hole < len(self.ids):
            self.ids[hole], self.sizes[hole], self.place[hole] = graph, size, place
            self.buckets[size & self.masks[0]][place] = hole

    def _take(self, chosen: tuple[int, ...]) -> None:
        """Move graphs from the window into the pack, leaving holes."""
        self.holes = sorted(chosen)
        for position in self.holes:
            size = self.sizes[position]
            first = size & self.masks[0]
            bucket = self.buckets[first]
            moved = bucket.pop()
            if moved != position:
                bucket[self.place[position]] = moved
                self.place[moved] = self.place[position]
            if not bucket:
                del self.present[bisect_left(self.present, first)]
            self.pending -= size
            self.left -= size
            self.pack.append(self.ids[position])
        self.graphs_left -= len(chosen)

    def _draw(self) -> tuple[int, ...]:
        """A random graph that fits, while there is room for over 2.5 mean ones; the first of a pack in any case."""
        count = len(self.ids)
        room, mean = 2 * (self.left & self.masks[0]) * count, self.pending & self.masks[0]
        if self.pack and room <= 5 * mean:
            return ()
        steer = len(self.masks) > 1 and bool(self.pack) and room <= 9 * mean
        best, best_score, found = -1, 0, 0
        for _ in range(DRAWS):
            position = self.draw() * count >> 32
            rest = self.left - self.sizes[position]
            if rest & self.guard != self.guard:
                continue
            if not steer:
                return (position,)
            score = self._imbalance(rest)
            if not found or score < best_score:
                best, best_score = position, score
            found += 1
            if found == CANDIDATES:
                break
        return (best,) if found else ()

    def _imbalance(self, rest: int) -> int:
        """How far the pack's sizes are from the window's proportions, in 1/256 of the first size."""
        pending = self.pending & self.masks[0]
        used = self.budget.sizes[0] - (rest & self.masks[0])
        score = 0
        for limit, shift, mask in zip(self.budget.sizes[1:], self.shifts[1:], self.masks[1:], strict=True):
            other = self.pending >> shift & mask
            score += 256 * abs((limit - (rest >> shift & mask)) * pending - used * other) // max(other, 1)
        return score

    def _complete(self) -> tuple[int, ...]:
        """The graph or pair that comes closest to what is left; nothing when no pending graph fits."""
        options, weights = self._options()
        for _ in range(COMPLETIONS if options else 0):
            ticket = self.draw() * sum(weights) >> 32
            chosen = 0
            while ticket >= weights[chosen]:
                ticket -= weights[chosen]
                chosen += 1
            if positions := self._best(*options[chosen]):
                return positions
        room = self.left & self.masks[0]
        for first in reversed(self.present[: bisect_right(self.present, room)]):
            for position in self.buckets[first]:
                if self.left - self.sizes[position] & self.guard == self.guard:
                    return (position,)
        return ()

    def _options(self) -> tuple[list[tuple[int, int]], list[int]]:
        """The first sizes, one (and -1) or two, that leave the least room, and how likely a draw yields each."""
        room = self.left & self.masks[0]
        low, high = 0, bisect_right(self.present, room) - 1
        if high < 0:
            return [], []
        best = self.present[high]
        options, weights = [(best, -1)], [len(self.buckets[best]) * len(self.ids)]
        while low <= high and self.graphs_left > 1:
            small, large = self.present[low], self.present[high]
            if small + large > room:
                high -= 1
                continue
            num_small, num_large = len(self.buckets[small]), len(self.buckets[large])
            weight = 2 * num_small * num_large if low < high else num_small * (num_small - 1)
            if weight and small + large > best:
                best, options, weights = small + large, [], []
            if weight and small + large == best:
                options.append((small, large))
                weights.append(weight)
            low += 1
        return options, weights

    def _best(self, small: int, large: int) -> tuple[int, ...]:
        """Of a few graphs of these first sizes the one, or the pair, that fits in best proportion."""
        candidates = CANDIDATES if len(self.masks) > 1 else 1
        if large < 0:
            pairs: list[tuple[int, ...]] = [(position,) for position in self._some(small, candidates)]
        elif small == large:
            members = self._some(small, 2 * candidates)
            half = len(members) // 2
            pairs = [(p, q) for p in members[:half] for q in members[half:]]
        else:
            others = self._some(large, candidates)
            pairs = [(p, q) for p in self._some(small, candidates) for q in others]
        best: tuple[int, ...] = ()
        best_score = 0
        for pair in pairs:
            rest = self.left - sum(self.sizes[position] for position in pair)
            if rest & self.guard == self.guard:
                score = self._imbalance(rest) if len(pairs) > 1 else 0
                if not best or score < best_score:
                    best, best_score = pair, score
        return best

    def _some(self, first: int, count: int) -> list[int]:
        """Neighbours in a bucket from a random place on."""
        bucket = self.buckets[first]
        start = self.draw() * len(bucket) >> 32
        return [bucket[(start + i) % len(bucket)] for i in range(min(count, len(bucket)))]

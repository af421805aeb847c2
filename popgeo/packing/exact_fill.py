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
            fits = self._draw_freely(source)
            if self.holes:
                continue
            chosen = (self._draw() if fits else ()) or self._complete()
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

    def _draw_freely(self, source: Iterator[tuple[int, int]]) -> bool:
        """Draw while there is ample room, and replace each graph at once; False when the tries to draw ran out.

        It does what `_draw`, `_take` and `_refill` do, but most graphs pass here only, so the loop is written out.
        """
        fits = True
        ids, sizes, place, buckets, present = self.ids, self.sizes, self.place, self.buckets, self.present
        draw, guard, mask, count = self.draw, self.guard, self.masks[0], len(self.ids)
        pending, left, graphs_left, pack = self.pending, self.left, self.graphs_left, self.pack
        while graphs_left > 1 and (2 * (left & mask) * count > 9 * (pending & mask) or not pack):
            for _ in range(DRAWS):
                position = draw() * count >> 32
                size = sizes[position]
                if (left - size) & guard == guard:
                    break
            else:
                fits = False
                break
            pack.append(ids[position])
            left -= size
            graphs_left -= 1
            pending -= size
            bucket = buckets[size & mask]
            moved = bucket.pop()
            if moved != position:
                bucket[place[position]] = moved
                place[moved] = place[position]
            if not bucket:
                del present[bisect_left(present, size & mask)]
            graph = next(source, None)
            if graph is None:
                self.holes = [position]
                break
            ids[position], size = graph
            sizes[position] = size
            first = size & mask
            bucket = buckets.setdefault(first, [])
            if not bucket:
                insort(present, first)
            place[position] = len(bucket)
            bucket.append(position)
            pending += size
        self.pending, self.left, self.graphs_left = pending, left, graphs_left
        return fits

    def _draw(self) -> tuple[int, ...]:
        """A random graph that fits, while there is room for over 2.5 mean ones; the first of a pack in any case."""
        count = len(self.ids)
        room, mean = 2 * (self.left & self.masks[0]) * count, self.pending & self.masks[0]
        if self.pack and room <= 5 * mean:
            return ()
        steer = len(self.masks) > 1 and bool(self.pack) and room <= 9 * mean
        drift = self._drift(self.full - self.left) if steer else 0
        best, best_score, found = -1, 0, 0
        for _ in range(DRAWS):
            position = self.draw() * count >> 32
            size = self.sizes[position]
            if (self.left - size) & self.guard != self.guard:
                continue
            if not steer:
                return (position,)
            score = abs(drift + self._drift(size))
            if not found or score < best_score:
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
        if self.left & self.masks[0] < self.present[0]:
            return ()
        options, weights = self._options()
        total = sum(weights)
        for _ in range(COMPLETIONS):
            ticket = self.draw() * total >> 32
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
        room, present, buckets = self.left & self.masks[0], self.present, self.buckets
        options, weights = [], []
        best = present[bisect_right(present, room) - 1]
        if best == room or self.graphs_left < 2:
            options.append((best, -1))
            weights.append(len(buckets[best]) * len(self.ids))
        if self.graphs_left < 2:
            return options, weights
        # Some pair mostly fills the room to the last, and a look-up finds the partner of each size.
        for small in present:
            if 2 * small > room:
                break
            if large := buckets.get(room - small):
                num_small, num_large = len(buckets[small]), len(large)
                if weight := 2 * num_small * num_large if 2 * small < room else num_small * (num_small - 1):
                    options.append((small, room - small))
                    weights.append(weight)
        return (options, weights) if options else self._closest(room, best)

    def _closest(self, room: int, best: int) -> tuple[list[tuple[int, int]], list[int]]:
        """The same where neither a graph nor a pair fills the room, and `best` is the largest single size within it."""
        options, weights = [(best, -1)], [len(self.buckets[best]) * len(self.ids)]
        low, high = 0, bisect_right(self.present, room) - 1
        while low <= high:
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
        drift = self._drift(self.full - left) if steer else 0
        partners = [(q, sizes[q], self._drift(sizes[q]) if steer else 0) for q in others] or [(-1, 0, 0)]
        best: tuple[int, ...] = ()
        best_score = 0
        for p in members:
            left_p = left - sizes[p]
            drift_p = drift + self._drift(sizes[p]) if steer else 0
            for q, size_q, drift_q in partners:
                if (left_p - size_q) & guard == guard and (not best or abs(drift_p + drift_q) < best_score):
                    best, best_score = (p,) if q < 0 else (p, q), abs(drift_p + drift_q)
        return best

    def _some(self, first: int, count: int) -> list[int]:
        """Neighbours in a bucket from a random place on."""
        bucket = self.buckets[first]
        start = self.draw() * len(bucket) >> 32
        return [bucket[(start + i) % len(bucket)] for i in range(min(count, len(bucket)))]

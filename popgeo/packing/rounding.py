"""Whole packs from fractions of packs: round down, then pack the remaining graphs as tightly as possible."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from popgeo.packing.column_generation import LinearSolution
from popgeo.packing.size_plan import Histogram, SizePlan


def fill_exactly(
    sizes: Sequence[int], counts: Sequence[int], capacity: int, num_graphs: int
) -> Counter[tuple[int, ...]]:
    """Pack a histogram pack by pack, each as full as possible, with the largest graphs that allow this.

    So small graphs, which fill gaps best, remain for the end.

    Example:
        >>> dict(fill_exactly([2, 3, 5], [3, 2, 1], capacity=7, num_graphs=9))
        {(5, 2): 1, (3, 2, 2): 1, (3,): 1}
    """
    order = sorted((s for s in zip(sizes, counts, strict=True) if s[1]), reverse=True)
    values, left = [s for s, _ in order], [c for _, c in order]
    packs: Counter[tuple[int, ...]] = Counter()
    for _ in range(sum(left)):  # no more packs than graphs
        contents = _fullest(values, left, capacity, num_graphs)
        if not contents:
            break
        packs[contents] += 1
        for size in contents:
            left[values.index(size)] -= 1
    return packs


def round_to_packs(solution: LinearSolution, sizes: Histogram) -> SizePlan:
    """Return whole packs that hold each graph exactly once, close to the fractional solution.

    Rounding down leaves at most one pack of each used kind to pack again, and there are at most as many used kinds as
    sizes. So this is fast, and the result is seldom more than one pack above the bound.
    """
    amounts = np.floor(solution.amounts + 1e-9).astype(np.int64)
    packs: Counter[tuple[int, ...]] = Counter()
    left = np.array(sizes.counts, np.int64)
    for k in np.flatnonzero(amounts):
        # Columns cover each size at least as often as there are graphs, so the last packs may ask for too many graphs.
        count = int(amounts[k])
        for _ in range(len(left) + 1):  # each round meets the count or uses up a size
            kind = np.minimum(solution.kinds[:, k], left)
            if not count or not kind.any():
                break
            held = kind > 0
            whole = min(count, int((left[held] // kind[held]).min()))
            packs[tuple(np.repeat(sizes.sizes, kind)[::-1].tolist())] += whole
            left -= whole * kind
            count -= whole
    packs += fill_exactly(sizes.sizes, left.tolist(), sizes.capacity, sizes.num_graphs)
    # Sizes that were rounded up to units may need more packs than the real sizes; only the volume bound is valid.
    return SizePlan.of(sizes, packs.items(), solution.bound if sizes.unit == 1 else sizes.bound)


def _fullest(values: list[int], left: list[int], capacity: int, num_graphs: int) -> tuple[int, ...]:
    # reach[i] has bit r set if graphs of sizes i, i+1, ... can use exactly r.
    mask = (1 << (capacity + 1)) - 1
    reach = [1]
    for value, count in zip(reversed(values), reversed(left), strict=True):
        bits = reach[0]
        for step in (1 << doublings for doublings in range(count.bit_length())):
            bits = (bits | bits << min(step, count - step + 1) * value) & mask  # 1, 2, 4 ... and the rest: any number
        reach.insert(0, bits)
    room = reach[0].bit_length() - 1
    contents: list[int] = []
    for i, size in enumerate(values):
        most = min(left[i], num_graphs - len(contents), room // size if size else left[i])
        # After graphs of this size, smaller graphs must still reach the rest. `reach` ignores the number of graphs, so
        # there may be no such choice.
        reachable = (n for n in range(most, -1, -1) if (reach[i + 1] >> (room - n * size)) & 1)
        take = next(reachable, most)
        contents += [size] * take
        room -= take * size
    return tuple(contents)

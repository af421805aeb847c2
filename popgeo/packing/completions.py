"""Which sizes complete a pack: one graph or two that leave the least room."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

_Options = tuple[list[tuple[int, int]], list[int]]


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
    best = present[bisect_right(present, room) - 1]
    alone = [(best, -1)], [counts[best] * sum(counts.values())]
    if not pair:
        return alone
    options, weights = alone if best == room else ([], [])
    # Some pair mostly fills the room to the last, and a look-up finds the partner of each size.
    for small in present:
        if 2 * small > room:
            break
        if num_large := counts.get(room - small):
            num_small = counts[small]
            if weight := 2 * num_small * num_large if 2 * small < room else num_small * (num_small - 1):
                options.append((small, room - small))
                weights.append(weight)
    return (options, weights) if options else _closest(room, present, counts, alone)


def _closest(room: int, present: Sequence[int], counts: Mapping[int, int], alone: _Options) -> _Options:
    """The same if nothing fills the room to the last: for each size the largest that still fits next to it."""
    options, weights = alone
    best = options[0][0]
    for small in present:
        if 2 * small > room:
            break
        large = present[bisect_right(present, room - small) - 1]
        num_small, num_large = counts[small], counts[large]
        weight = 2 * num_small * num_large if small < large else num_small * (num_small - 1)
        if weight and small + large > best:
            best, options, weights = small + large, [], []
        if weight and small + large == best:
            options.append((small, large))
            weights.append(weight)
    return options, weights

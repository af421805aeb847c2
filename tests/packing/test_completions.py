"""Which sizes complete a pack, by hand and against trying all."""

import random
from collections import Counter
from itertools import combinations, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.packing.exact_fill import completions


def test_a_pair_that_fills_the_room_is_found():
    assert completions(10, [4, 6, 7], {4: 2, 6: 3, 7: 9}, pair=True) == ([(4, 6)], [12])


def test_two_of_a_size_need_two_graphs_of_it():
    assert completions(10, [5], {5: 1}, pair=True) == ([(5, -1)], [1])
    assert completions(10, [5], {5: 3}, pair=True) == ([(5, 5)], [6])


def test_where_nothing_fills_the_room_the_closest_is_taken():
    assert completions(10, [2, 7], {2: 1, 7: 2}, pair=True) == ([(2, 7)], [4])
    assert completions(10, [2, 7], {2: 1, 7: 2}, pair=False) == ([(7, -1)], [6])


@settings(deadline=None, max_examples=100)
@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=12), room=st.integers(0, 40), pair=st.booleans())
def test_weights_count_the_ordered_draws_that_leave_the_least_room(sizes, room, pair):
    room = max(room, min(sizes))
    totals = [size for size in sizes if size <= room]
    totals += [a + b for a, b in combinations(sizes, 2) if pair and a + b <= room]
    counts = {size: sizes.count(size) for size in set(sizes)}
    options, weights = completions(room, sorted(counts), counts, pair=pair)
    singles = len(sizes) * sum(size == max(totals) for size in sizes)
    pairs = 2 * sum(pair and a + b == max(totals) for a, b in combinations(sizes, 2))
    assert sum(weights) == singles + pairs
    assert {small + max(large, 0) for small, large in options} == {max(totals)}
    assert len(set(options)) == len(options)


def test_options_and_weights_are_those_of_all_draws_of_two():
    draw = random.Random(0)
    for _ in range(300):
        sizes = [draw.randint(0, draw.choice((4, 12))) for _ in range(draw.randint(1, 8))]
        room, pair = max(min(sizes), draw.randint(0, 20)), draw.random() < 0.8
        drawn = Counter({(size, -1): len(sizes) * sizes.count(size) for size in sizes if size <= room})
        if pair:
            drawn.update((min(two), max(two)) for two in permutations(sizes, 2) if sum(two) <= room)
        used = {(small, large): small + max(large, 0) for small, large in drawn}
        expected = {option: weight for option, weight in drawn.items() if used[option] == max(used.values())}
        counts = Counter(sizes)
        options, weights = completions(room, sorted(counts), counts, pair=pair)
        assert dict(zip(options, weights, strict=True)) == expected
        assert options == sorted(set(options), key=lambda option: (option[1] >= 0, option))  # one alone, then pairs

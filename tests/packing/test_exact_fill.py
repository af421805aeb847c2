"""The interpreted window takes every decision as the compiled one does, whatever pieces the graphs come in."""

import random
from itertools import pairwise

import numpy as np
import pytest

from popgeo.native import library
from popgeo.packing import Budget
from popgeo.packing.exact_fill import Window
from popgeo.packing.window import _CompiledWindow, _open


def pieces(draw: random.Random, rows: list[list[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Yield the ids and sizes of a few graphs at a time, sometimes of none."""
    ids = np.array(draw.sample(range(1000), len(rows)), np.int64)
    table = np.array(rows, np.int64)
    cuts = [0, *sorted(draw.randint(0, len(rows)) for _ in range(draw.randint(0, 3))), len(rows)]
    return [(ids[start:stop], table[start:stop]) for start, stop in pairwise(cuts)]


def cases(seed: int) -> tuple[Budget, int, list[list[int]]]:
    """Graphs of a few or of many sizes in one to four dimensions, some of them in proportion to the first."""
    draw = random.Random(seed)
    num_dims, mean = draw.choice((1, 1, 2, 2, 2, 3, 4)), draw.choice((2, 6, 20))
    least = draw.choice((0, 1, mean // 2))
    rows = []
    for _ in range(draw.randint(1, 150)):
        first = draw.randint(least, 2 * mean)
        others = [draw.choice((2 * first + draw.randint(0, mean), draw.randint(0, 3 * mean))) for _ in range(3)]
        rows.append([first, *others][:num_dims])
    most = draw.choice((1, 2, 5, 9, 16))
    limits = tuple(
        max(max(column), round(most * draw.uniform(0.8, 1.6) * sum(column) / len(rows)))
        for column in zip(*rows, strict=True)
    )
    return (
        Budget(sizes=limits, num_graphs=draw.choice((1, 2, 3, 7, 40, 40, 40))),
        draw.choice((1, 3, 20, 70, 400)),
        rows,
    )


@pytest.mark.parametrize("part", range(4))
def test_the_interpreted_window_gives_what_the_compiled_one_gives_piece_by_piece(part):
    if not library.is_available():
        pytest.skip(library.reason())
    for seed in range(60 * part, 60 * part + 60):
        budget, pending, rows = cases(seed)
        compiled, interpreted = _open(budget, pending, seed), Window(budget, pending, seed)
        assert isinstance(compiled, _CompiledWindow)
        given = pieces(random.Random(seed), rows)
        for number, (ids, table) in enumerate(given, 1):
            expected = compiled.push(ids, table, last=number == len(given))
            found = interpreted.push(ids, table, last=number == len(given))
            assert found.indices.tolist() == expected.indices.tolist()
            assert found.ptr.tolist() == expected.ptr.tolist()


def test_sizes_too_large_for_64_bits_together_are_packed_as_their_fractions_are():
    for seed in range(20):
        budget, pending, rows = cases(seed)
        ids, table = np.arange(len(rows)), np.array(rows, np.int64)
        expected = Window(budget, pending, seed).push(ids, table, last=True)
        large = Budget(sizes=tuple(limit << 40 for limit in budget.sizes), num_graphs=budget.num_graphs)
        found = Window(large, pending, seed).push(ids, table << 40, last=True)
        assert found.indices.tolist() == expected.indices.tolist()
        assert found.ptr.tolist() == expected.ptr.tolist()

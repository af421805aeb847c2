"""Next fit keeps the order and never rejects what fits."""

import random

import numpy as np
import pytest

from popgeo.packing import Budget, Packs, stream


def lists(packs: Packs) -> list[list[int]]:
    return [pack.tolist() for pack in packs]


def test_a_pack_is_closed_only_when_the_next_graph_does_not_fit(native):
    assert lists(stream([3, 4, 5, 1, 1, 7], Budget(sizes=(7,), num_graphs=9))) == [[0, 1], [2, 3, 4], [5]]


def test_every_dimension_can_close_a_pack(native):
    sizes = [[1, 5], [1, 5], [1, 0], [6, 0], [1, 0]]
    assert lists(stream(sizes, Budget(sizes=(7, 9), num_graphs=9))) == [[0], [1, 2], [3, 4]]


def test_the_number_of_graphs_can_close_a_pack(native):
    assert lists(stream([1, 1, 1, 0, 0], Budget(sizes=(99,), num_graphs=2))) == [[0, 1], [2, 3], [4]]


def test_a_graph_that_never_fits_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"Graph 2 has sizes \(8,\)"):
        stream([3, 7, 8], Budget(sizes=(7,), num_graphs=2))


def test_a_graph_that_never_fits_can_be_skipped_and_is_counted():
    packs = stream([3, 8, 7], Budget(sizes=(7,), num_graphs=2), skip=True)
    assert lists(packs) == [[0], [2]]
    assert packs.skipped.tolist() == [1]


def test_no_graphs_make_no_packs(native):
    assert lists(stream(np.empty((0, 2), int), Budget(sizes=(7, 7), num_graphs=2))) == []
    assert lists(stream([], Budget(sizes=(7,), num_graphs=2))) == []


@pytest.mark.parametrize(("sizes", "reason"), [([1.5], "whole"), ([-1], "negative"), ([[1, 2]], "dimensions")])
def test_sizes_that_make_no_sense_are_refused(sizes, reason):
    with pytest.raises(ValueError, match=reason):
        stream(sizes, Budget(sizes=(7,), num_graphs=2))


def test_packs_are_those_of_next_fit_graph_by_graph(native):
    draw = random.Random(0)
    for _ in range(60):
        limits, num_graphs = (
            [draw.randint(0, 12) for _ in range(draw.randint(1, 3))],
            draw.choice((1, 2, 5, 99, 2**62, 2**70)),
        )
        rows = [[draw.randint(0, limit) for limit in limits] for _ in range(draw.randint(1, 25))]
        expected: list[list[int]] = [[]]
        for graph, row in enumerate(rows):
            used = [sum(rows[i][d] for i in expected[-1]) + row[d] for d in range(len(limits))]
            if len(expected[-1]) == num_graphs or any(u > limit for u, limit in zip(used, limits, strict=True)):
                expected.append([])
            expected[-1].append(graph)
        assert lists(stream(rows, Budget(sizes=tuple(limits), num_graphs=num_graphs))) == expected

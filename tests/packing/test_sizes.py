"""The door of every packing function: what it takes, what it refuses, what it leaves out."""

import numpy as np
import pytest

from popgeo.packing import Budget
from popgeo.packing.sizes import as_table, fitting, names


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([1.0, 2.0], "sizes has dtype float64"),
        (["3"], "sizes are whole numbers"),
        (3, "sizes has 0 dimensions"),
        ([[[1]]], "sizes has 3 dimensions"),
        ([[3, 0], [4, -1], [-2, 5]], "Graph 2 has size -2"),
        ([4, -1], "Graph 1 has size -1"),
    ],
)
def test_sizes_that_are_no_sizes_are_refused(sizes, reason):
    with pytest.raises(ValueError, match=reason):
        as_table(sizes)


def test_sizes_become_a_table_without_a_copy_where_they_are_one():
    table = np.array([[3, 4], [0, 6]])
    assert np.shares_memory(as_table(table), table)
    assert as_table(np.array([3, 4], np.int16)).tolist() == [[3], [4]]
    assert as_table(np.array([3], np.int16)).dtype == np.int64
    assert as_table([]).shape == (0, 1)
    assert as_table(np.empty((0, 3))).shape == (0, 3)


def test_graphs_that_fit_are_kept_with_their_ids():
    sizes, budget = [[5, 1], [6, 1], [5, 2], [5, 3], [0, 0]], Budget(sizes=(5, 2), num_graphs=1)
    table, ids, skipped = fitting(sizes, budget, skip=True)
    assert (table.tolist(), skipped.tolist()) == ([[5, 1], [5, 2], [0, 0]], [1, 3])
    assert ids is not None
    assert ids.tolist() == [0, 2, 4]
    table, ids, skipped = fitting(sizes[:1] + sizes[2:3], budget)
    assert (table.tolist(), ids, skipped.tolist()) == ([[5, 1], [5, 2]], None, [])
    assert skipped.dtype == np.int64
    with pytest.raises(
        ValueError, match=r"Graph 1 has sizes \(6, 1\).*graphs like it: 2.*Raise the budget to \(6, 3\)"
    ):
        fitting(sizes, budget)
    with pytest.raises(ValueError, match="sizes has 2 dimensions, the budget 1"):
        fitting(sizes, Budget(sizes=(9,), num_graphs=1))
    table, ids, skipped = fitting(np.empty((0, 2), int), budget)
    assert (table.shape, ids, skipped.tolist()) == ((0, 2), None, [])
    with pytest.raises(ValueError, match="Graph 0 has sizes"):
        fitting([1, 0], Budget(sizes=(0,), num_graphs=1))


def test_two_dimensions_have_names_and_more_have_numbers():
    assert [names(number) for number in (1, 2, 3)] == [
        ("nodes",),
        ("nodes", "edges"),
        ("size_0", "size_1", "size_2"),
    ]

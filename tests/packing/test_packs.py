"""The noun that packing and the loader share: which graphs share a batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.packing import Budget, Packs
from popgeo.packing.packs import totals_of_packs

PACKS = Packs.from_lists([[4, 2], [], [7], [1, 0, 3]], skipped=[9])


def lists(packs: Packs) -> list[list[int]]:
    return [pack.tolist() for pack in packs]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (slice(1, 3), [[], [7]]),
        (slice(None, None, 2), [[4, 2], [7]]),
        (slice(3, None), [[1, 0, 3]]),
        (slice(None, None, -1), [[1, 0, 3], [7], [], [4, 2]]),
        (slice(4, 9), []),
        (slice(3, 1), []),
    ],
)
def test_a_slice_of_packs_is_packs(part, expected):
    found = PACKS[part]
    assert lists(found) == expected
    assert found.ptr.tolist() == [0, *np.cumsum([len(pack) for pack in expected]).tolist()]
    assert found.skipped.tolist() == [9]


def test_packs_in_a_row_are_views():
    assert np.shares_memory(PACKS[1:3].indices, PACKS.indices)


@settings(deadline=None, max_examples=50)
@given(counts=st.lists(st.integers(0, 4), max_size=6), start=st.integers(-8, 8), stop=st.integers(-8, 8))
def test_slicing_packs_is_slicing_a_list_of_them(counts, start, stop):
    ptr = np.cumsum([0, *counts])
    packs = Packs(np.arange(ptr[-1]), ptr)
    assert lists(packs[start:stop]) == lists(packs)[start:stop]


@pytest.mark.parametrize("sizes", [(), (-1,), (4, -1)])
def test_a_budget_of_no_dimension_or_a_negative_one_is_refused(sizes):
    with pytest.raises(ValueError, match="give at least one dimension, and no negative size"):
        Budget(sizes=sizes, num_graphs=1)
    with pytest.raises(ValueError, match="num_graphs is 0"):
        Budget(sizes=(4,), num_graphs=0)


def test_a_pack_is_found_by_its_place_from_either_end():
    assert [PACKS[i].tolist() for i in (0, 3, -1, -4)] == [[4, 2], [1, 0, 3], [1, 0, 3], [4, 2]]
    for beyond in (4, -5):
        with pytest.raises(IndexError, match=f"Pack {beyond} was asked for; there are 4"):
            PACKS[beyond]
    assert (len(PACKS), PACKS.num_graphs) == (4, 6)


def test_packs_are_made_of_lists_of_one_pack_and_of_plans():
    assert (PACKS.indices.tolist(), PACKS.ptr.tolist()) == ([4, 2, 7, 1, 0, 3], [0, 2, 2, 3, 6])
    assert PACKS.indices.dtype == PACKS.ptr.dtype == PACKS.skipped.dtype == np.int64
    assert Packs.from_lists([[1]]).skipped.tolist() == []
    single = Packs.single(3)
    assert (lists(single), single.ptr.tolist(), single.skipped.tolist()) == ([[0, 1, 2]], [0, 3], [])
    nothing = Packs.concatenate([])
    assert (nothing.indices.tolist(), nothing.ptr.tolist(), nothing.skipped.tolist()) == ([], [0], [])
    both = Packs.concatenate([PACKS, Packs.from_lists([]), Packs.from_lists([[5], [8, 6]], skipped=[10, 11])])
    assert lists(both) == [[4, 2], [], [7], [1, 0, 3], [5], [8, 6]]
    assert both.skipped.tolist() == [9, 10, 11]


def test_totals_are_those_of_the_graphs_of_a_pack():
    sizes = np.arange(20).reshape(10, 2)
    expected = [sizes[pack].sum(axis=0).tolist() for pack in PACKS]
    assert totals_of_packs(sizes, PACKS.indices, PACKS.ptr).tolist() == expected
    assert totals_of_packs(sizes, np.empty(0, int), np.array([0])).shape == (0, 2)


def test_the_least_budget_holds_one_graph_of_nothing():
    budget = Budget(sizes=(0,), num_graphs=1)
    assert (budget.sizes, budget.num_graphs) == ((0,), 1)

"""The noun that packing and the loader share: which graphs share a batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.packing import Budget, Packs

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
    with pytest.raises(ValueError, match="give at least one dimension, none of them negative"):
        Budget(sizes=sizes, num_graphs=1)
    with pytest.raises(ValueError, match="num_graphs is 0"):
        Budget(sizes=(4,), num_graphs=0)

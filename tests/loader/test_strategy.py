"""Strategies that group graphs into batches."""

import numpy as np
import pytest
import torch

from popgeo.data import OverSizeStrategy
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from popgeo.loader.pack_graphs import PackChoices, pack_epoch
from popgeo.packing import Budget, Packs
from tests.support.loaders import GRAPHS, loader_of, seeds


def test_equal_numbers_of_graphs_leave_out_what_overflows_and_no_more():
    sizes, budget = np.array([[3], [3], [1], [5], [1]]), Budget(sizes=(5,), num_graphs=3)
    choices = PackChoices(strategy=FixedSizeStrategy.PadToMax, over_size_strategy=OverSizeStrategy.Skip)
    packs = pack_epoch(sizes, budget, choices, None, torch.Generator())
    assert [pack.tolist() for pack in packs] == [[0, 2], [3]]  # what is left out takes no room
    assert packs.skipped.tolist() == [1, 4]


def test_a_function_of_the_users_is_a_strategy_and_is_checked():
    def one_each(sizes, budget, *, generator=None):
        return Packs.from_lists([[i] for i in range(len(sizes))])

    def twice(sizes, budget, *, generator=None):
        return Packs.from_lists([[0, 0]])

    def all_at_once(sizes, budget, *, generator=None):
        return Packs.from_lists([range(len(sizes))])

    assert len(loader_of(strategy=one_each)) == 40
    with pytest.raises(ValueError, match="uses graph 0 2 times"):
        len(loader_of(strategy=twice))
    with pytest.raises(ValueError, match="must stay within its budget"):
        len(loader_of(strategy=all_at_once))


def test_stream_packing_without_options_measures_the_dataset():
    loader = FixedSizeDataLoader(GRAPHS, 5, fixed_size_strategy="StreamPack")
    assert seeds(loader) == list(range(40))

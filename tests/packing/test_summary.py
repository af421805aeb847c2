"""Tables of plans: by hand, and as the figures expect them."""

import numpy as np
import pytest
import torch

from popgeo.packing import Budget, Packs, fill, mean_sizes, stream, summary, sweep, variance_ratio, window

SIZES = np.array([[4, 6], [4, 2], [2, 8], [6, 4]])
BUDGET = Budget(sizes=(8, 16), num_graphs=4)
BUDGET_1D = Budget(sizes=(8,), num_graphs=4)
PACKS = Packs.from_lists([[0, 1], [2, 3]])


def test_a_summary_has_one_row_per_plan():
    table = summary({"mine": PACKS, "stream": stream(SIZES, BUDGET)}, SIZES, BUDGET)
    assert table["strategy"].tolist() == ["mine", "stream"]
    row = table.iloc[0]
    assert (row["num_packs"], row["lower_bound"], row["binds"], row["graphs_per_pack"]) == (2, 2, "nodes", 2.0)
    assert (row["nodes"], row["edges"], row["graphs"]) == (1.0, 0.625, 0.5)
    assert table["num_skipped"].tolist() == [0, 0]


def test_fill_and_means_are_those_of_each_pack():
    table = fill(Packs.from_lists([[0], [], [1, 2]]), SIZES, BUDGET)
    assert table["nodes"].tolist() == [0.5, 0.0, 0.75]
    assert table["edges"].tolist() == [0.375, 0.0, 0.625]
    assert table["graphs"].tolist() == [0.25, 0.0, 0.5]
    assert mean_sizes(PACKS, SIZES).tolist() == [4.0, 4.0]


def test_hetero_sizes_are_numbered():
    sizes = np.ones((4, 3), int)
    assert {"size_0", "size_1", "size_2", "graphs"} <= set(fill(PACKS, sizes, Budget(sizes=(9, 9, 9), num_graphs=4)))


@pytest.mark.parametrize(("order", "ratio"), [("random", 1.0), ("sorted", 8.0)])
def test_variance_ratio_is_one_for_random_packs_and_the_pack_length_for_sorted_ones(order, ratio):
    sizes = np.random.default_rng(0).integers(1, 100, 8000)
    ids = np.argsort(sizes) if order == "sorted" else np.random.default_rng(1).permutation(8000)
    assert variance_ratio(Packs.from_lists(ids.reshape(1000, 8)), sizes) == pytest.approx(ratio, rel=0.1)


def test_equal_sizes_have_no_variance_ratio():
    assert np.isnan(variance_ratio(PACKS, [3, 3, 3, 3]))


def test_no_strategy_exceeds_the_bound_of_a_sweep():
    sizes = np.random.default_rng(0).integers(3, 12, 400)
    found, bound = sweep(sizes, [12, 20, 33], {"stream": stream, "window": window}, num_graphs=12)
    both = found.merge(bound, on="num_nodes", suffixes=("", "_bound"))
    assert (both["efficiency"] <= both["efficiency_bound"] + 1e-12).all()
    by_name = found.groupby("strategy")["efficiency"].mean()
    assert by_name["window"] > by_name["stream"]


def test_empty_plans_have_full_efficiency():
    table = summary({"none": window([], BUDGET_1D, generator=torch.Generator().manual_seed(0))}, [], BUDGET_1D)
    assert table.loc[0, "num_packs"] == table.loc[0, "lower_bound"] == 0


def test_the_variance_ratio_by_hand():
    # Sizes vary by 26 / 3; packs of 2 and 1 are 2 and 8 on average, which vary by 9, where chance gives 26 / 3 * 0.75.
    assert variance_ratio(Packs.from_lists([[0, 1], [2]]), [1, 3, 8]) == pytest.approx(9 / 6.5)
    # A pack without graphs counts as one of mean 0.
    with_empty = variance_ratio(Packs.from_lists([[0, 1], [], [2]]), [1, 3, 8])
    assert with_empty == pytest.approx(np.var([2, 0, 8]) / 6.5)
    assert np.isnan(variance_ratio(Packs.from_lists([[0, 1, 2]]), [1, 3, 8]))
    assert np.isnan(variance_ratio(Packs.from_lists([[0, 1], [2]]), [3, 3, 3]))
    assert variance_ratio(Packs.from_lists([[0], [1]]), [[1, 5], [3, 5]]) == 1


def test_every_column_of_a_summary_by_hand():
    packs = Packs.from_lists([[0, 1], [2]], skipped=[3])
    table = summary({"mine": packs}, [[1, 0], [3, 0], [8, 0], [9, 0]], Budget(sizes=(8, 0), num_graphs=4))
    assert list(table.columns) == [
        *("strategy", "num_packs", "lower_bound", "nodes", "edges", "graphs", "binds", "graphs_per_pack"),
        *("variance_ratio", "num_skipped"),
    ]
    assert table.iloc[0].tolist() == ["mine", 2, 2, 0.75, 0.0, 3 / 8, "nodes", 1.5, pytest.approx(9 / 6.5), 1]
    nothing = summary({"none": Packs.from_lists([])}, np.empty((0, 2), int), Budget(sizes=(8, 0), num_graphs=4))
    assert nothing.loc[0, "graphs_per_pack"] == 0


def test_fill_of_a_budget_without_room_is_none_and_of_one_slot_whole():
    table = fill(Packs.from_lists([[0], [1]]), [[1, 0], [0, 0]], Budget(sizes=(1, 0), num_graphs=2))
    assert table["nodes"].tolist() == [1.0, 0.0]
    assert table["edges"].tolist() == [0.0, 0.0]
    assert table["graphs"].tolist() == [0.5, 0.5]
    assert mean_sizes(Packs.from_lists([[0], []]), [[7, 1]]).tolist() == [7.0, 0.0]


def test_a_sweep_by_hand():
    found, bound = sweep([[4, 9], [2, 9], [4, 9]], [4, 6], {"a": stream, "b": stream}, num_graphs=2)
    assert found.columns.tolist() == ["strategy", "num_nodes", "efficiency"]
    assert found["strategy"].tolist() == ["a", "b"] * 2
    assert found["num_nodes"].tolist() == [4, 4, 6, 6]
    assert found["efficiency"].tolist() == pytest.approx([10 / 12, 10 / 12, 10 / 12, 10 / 12])
    assert (bound["num_nodes"].tolist(), bound["efficiency"].tolist()) == ([4, 6], pytest.approx([10 / 12, 10 / 12]))
    _, nothing = sweep([], [5], {}, num_graphs=2)
    assert nothing["efficiency"].tolist() == [0.0]


def test_one_pack_by_hand():
    table = summary({"one": Packs.from_lists([[0, 1, 2]])}, [1, 3, 4], Budget(sizes=(8,), num_graphs=3))
    assert table.loc[0, "graphs_per_pack"] == 3
    _, bound = sweep([1, 3], [5], {}, num_graphs=2)
    assert bound["efficiency"].tolist() == [0.8]

"""Which plan is taken, and how sizes of a plan find their graphs."""

import numpy as np
import pytest
import torch

from popgeo.packing import Budget, Histogram, SizePlan, assign, optimal, optimal_plan
from popgeo.packing.decreasing import best_fit_decreasing

MISSED = Histogram(sizes=(3, 4, 5), counts=(2, 2, 2), capacity=12, num_graphs=9, bound=2, dim=1, unit=2)
GREEDY = best_fit_decreasing(MISSED)  # 3 packs, where 2 would do


@pytest.mark.parametrize(
    ("num_packs", "expected"), [(2, ((9,),)), (3, ((9,),)), (4, GREEDY.composition)], ids=["fewer", "as many", "more"]
)
def test_of_the_plan_and_largest_first_the_one_with_fewer_packs_is_taken(monkeypatch, num_packs, expected):
    planned = SizePlan(composition=((9,),), counts=(num_packs,), bound=1, dim=1, unit=2)
    monkeypatch.setitem(optimal_plan.__wrapped__.__globals__, "round_to_packs", lambda *given: planned)
    plan = optimal_plan.__wrapped__(MISSED)
    assert (plan.composition, plan.bound, plan.dim, plan.unit) == (expected, 1, 1, 2)
    assert plan.num_packs == min(num_packs, 3)


@pytest.mark.parametrize("bound", [3, 4])
def test_largest_first_is_taken_at_once_where_it_is_proven(monkeypatch, bound):
    monkeypatch.setitem(optimal_plan.__wrapped__.__globals__, "solve_fractional", None)
    counted = Histogram(sizes=(3, 4, 5), counts=(2, 2, 2), capacity=12, num_graphs=9, bound=bound)
    assert optimal_plan.__wrapped__(counted) == best_fit_decreasing(counted)


def test_where_sizes_are_rounded_largest_first_may_need_fewer_packs(monkeypatch):
    # 1 and 632, 2 and 631 ... fill 633; in units of 2, none of these pairs fit.
    monkeypatch.setitem(optimal.__globals__, "optimal_plan", best_fit_decreasing)
    packs = optimal(np.arange(1, 634), Budget(sizes=(633,), num_graphs=9))
    assert len(packs) == 317


def test_graphs_of_a_size_are_taken_in_order_or_at_random():
    plan = SizePlan(composition=((3, 2), (3,), (2, 2)), counts=(2, 1, 1), bound=2)
    sizes = [2, 3, 3, 2, 2, 3, 2]
    packs = assign(plan, sizes, Budget(sizes=(5,), num_graphs=2))
    assert [pack.tolist() for pack in packs] == [[1, 0], [2, 3], [5], [4, 6]]
    held = [
        sorted(
            tuple(sizes[graph] for graph in pack)
            for pack in assign(
                plan, sizes, Budget(sizes=(5,), num_graphs=2), generator=torch.Generator().manual_seed(s)
            )
        )
        for s in range(5)
    ]
    assert held == [[(2, 2), (3,), (3, 2), (3, 2)]] * 5
    with_skipped = assign(plan, [2, 3, 9, 3, 2, 2, 3, 2], Budget(sizes=(5,), num_graphs=2), skip=True)
    assert [pack.tolist() for pack in with_skipped] == [[1, 0], [3, 4], [6], [5, 7]]
    assert with_skipped.skipped.tolist() == [2]


def test_a_plan_for_edges_is_assigned_by_edges_in_units():
    plan = SizePlan(composition=((2, 1), (2,)), counts=(1, 1), bound=2, dim=1, unit=3)
    packs = assign(plan, [[1, 4], [1, 3], [1, 6]], Budget(sizes=(9, 10), num_graphs=2))
    assert [pack.tolist() for pack in packs] == [[0, 1], [2]]


def test_the_only_graph_of_a_size_is_swapped_for_none_other():
    plan = SizePlan(composition=((2, 1), (2,)), counts=(1, 1), bound=2)
    packs = assign(plan, [[2, 9], [1, 2], [2, 5]], Budget(sizes=(3, 10), num_graphs=2))
    assert [pack.tolist() for pack in packs] == [[2, 1], [0]]

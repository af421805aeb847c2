"""What holds for every strategy, on random and on adversarial sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.native import library
from popgeo.packing import Budget, Packs, decreasing, efficiency, iter_window, lower_bound, optimal, stream, window

STRATEGIES = {"stream": stream, "window": window, "decreasing": decreasing, "optimal": optimal}
every_strategy = pytest.mark.parametrize("pack", STRATEGIES.values(), ids=STRATEGIES)

ADVERSARIAL = {
    "all equal": ([[5, 10]] * 40, Budget(sizes=(12, 20), num_graphs=9)),
    "one giant": ([[1, 2]] * 60 + [[50, 90]], Budget(sizes=(50, 100), num_graphs=64)),
    "all over half": ([[n, 0] for n in range(6, 11)] * 5, Budget(sizes=(10, 0), num_graphs=4)),
    "exact fits": ([[7, 3], [3, 7]] * 20, Budget(sizes=(10, 10), num_graphs=2)),
    "empty": (np.empty((0, 2), int), Budget(sizes=(10, 10), num_graphs=2)),
    "zero edges": ([[3, 0], [4, 0], [5, 0]] * 9, Budget(sizes=(12, 0), num_graphs=5)),
    "zero nodes": ([[0, 0]] * 20, Budget(sizes=(0, 0), num_graphs=3)),
    "edges bind": ([[1, 9], [1, 10], [1, 11]] * 9, Budget(sizes=(100, 30), num_graphs=50)),
    "opposite sizes": ([[9, 1], [1, 9]] * 20, Budget(sizes=(10, 10), num_graphs=8)),
    "one graph a pack": ([[2, 2], [1, 1]] * 9, Budget(sizes=(9, 9), num_graphs=1)),
    "one graph": ([[9, 9]], Budget(sizes=(9, 9), num_graphs=1)),
    "three dimensions": ([[1, 5, 2], [4, 1, 1], [2, 2, 9]] * 9, Budget(sizes=(11, 12, 13), num_graphs=6)),
}


@st.composite
def sizes_and_budget(draw: st.DrawFn) -> tuple[np.ndarray, Budget]:
    num_dims = draw(st.integers(1, 3))
    limits = draw(st.tuples(*[st.integers(0, 40)] * num_dims))
    row = st.tuples(*[st.integers(0, limit) for limit in limits])
    rows = draw(st.lists(row, max_size=60))
    return np.array(rows, np.int64).reshape(-1, num_dims), Budget(sizes=limits, num_graphs=draw(st.integers(1, 9)))


def check(packs: Packs, sizes: np.ndarray, budget: Budget) -> None:
    assert sorted(packs.indices.tolist()) == list(range(len(sizes)))
    for pack in packs:
        assert 1 <= len(pack) <= budget.num_graphs
        assert (sizes[pack].sum(axis=0) <= np.array(budget.sizes)).all()
    assert len(packs) >= lower_bound(sizes, budget)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@every_strategy
@settings(deadline=None, max_examples=40)
@given(case=sizes_and_budget(), seed=st.integers(0, 99))
def test_each_graph_is_in_one_pack_within_the_budget(pack, case, seed):
    check(pack(*case, generator=seeded(seed)), *case)


@every_strategy
@pytest.mark.parametrize("case", ADVERSARIAL.values(), ids=ADVERSARIAL)
def test_adversarial_sizes_are_packed_too(pack, case, native):
    sizes, budget = np.array(case[0]), case[1]
    check(pack(sizes, budget, generator=seeded()), sizes, budget)


@settings(deadline=None, max_examples=150)
@given(case=sizes_and_budget(), seed=st.integers(0, 99), pending=st.sampled_from([1, 2, 7, 64]))
def test_the_library_never_changes_a_plan(case, seed, pending):
    if not library.is_available():
        pytest.skip(library.reason())
    compiled = [window(*case, window=pending, generator=seeded(seed)), stream(*case)]
    with library.without_native():
        plain = [window(*case, window=pending, generator=seeded(seed)), stream(*case)]
    for one, other in zip(compiled, plain, strict=True):
        assert one.indices.tolist() == other.indices.tolist()
        assert one.ptr.tolist() == other.ptr.tolist()


@settings(deadline=None, max_examples=100)
@given(case=sizes_and_budget(), seed=st.integers(0, 99))
def test_a_pack_of_a_whole_window_is_closed_only_when_nothing_pending_fits(case, seed):
    sizes, budget = case
    packs = window(sizes, budget, window=max(1, len(sizes)), generator=seeded(seed))
    pending = set(range(len(sizes)))
    for pack in packs:
        pending -= set(pack.tolist())
        room = np.array(budget.sizes) - sizes[pack].sum(axis=0)
        if len(pack) < budget.num_graphs:
            assert not any((sizes[graph] <= room).all() for graph in pending)


@settings(deadline=None, max_examples=100)
@given(case=sizes_and_budget(), seed=st.integers(0, 99), pending=st.integers(1, 70))
def test_an_iterator_is_packed_like_a_list(case, seed, pending):
    sizes, budget = case
    chunks = iter_window(iter(sizes.tolist()), budget, window=pending, generator=seeded(seed))
    check(Packs.concatenate(chunks), sizes, budget)


@every_strategy
def test_equal_generators_give_equal_plans_and_others_do_not(pack):
    sizes = np.random.default_rng(0).integers(1, 9, (300, 2))
    budget = Budget(sizes=(40, 40), num_graphs=12)
    one, same, other = (pack(sizes, budget, generator=seeded(seed)).indices.tolist() for seed in (1, 1, 2))
    assert one == same
    assert (one == other) == (pack is stream)


@every_strategy
def test_the_door_is_the_same_for_all(pack):
    budget = Budget(sizes=(7, 7), num_graphs=3)
    with pytest.raises(ValueError, match="Graph 1 has sizes"):
        pack([[1, 1], [1, 8]], budget)
    skipping = pack([[1, 1], [1, 8], [2, 2]], budget, skip=True)
    assert skipping.skipped.tolist() == [1]
    assert sorted(skipping.indices.tolist()) == [0, 2]
    with pytest.raises(ValueError, match="dimensions"):
        pack([1, 2], budget)


@every_strategy
@settings(deadline=None, max_examples=25)
@given(case=sizes_and_budget())
def test_no_share_exceeds_the_whole(pack, case):
    sizes, budget = case
    found = efficiency(pack(*case, generator=seeded()), sizes, budget)
    assert all(0 <= share <= 1 for share in (*found.sizes, found.graphs))

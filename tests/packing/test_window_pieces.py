"""How graphs come into the window, which window is opened for them, and what it frees and refuses."""

import numpy as np
import pytest
import torch

from popgeo.native import library
from popgeo.packing import Budget, iter_window, stream, window
from popgeo.packing.exact_fill import Window
from popgeo.packing.window import _Compiled, _enter, _open, _read

BUDGET = Budget(sizes=(9, 9), num_graphs=3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lists(chunk) -> tuple[list, ...]:
    return tuple(part.tolist() for part in chunk)


def test_an_iterator_is_read_a_window_and_256_graphs_and_then_256_at_a_time():
    rows = [(i % 10, i % 7) if i % 100 else (10, 1) for i in range(600)]
    first, second, third = _read(iter(rows), BUDGET, 5, True)
    big = [0, 100, 200]
    assert first[0].tolist() == [i for i in range(261) if i not in big]
    assert first[1].tolist() == [list(row) for i, row in enumerate(rows[:261]) if i not in big]
    assert first[2].tolist() == big
    assert second[0].tolist() == [i for i in range(261, 517) if i % 100]
    assert second[2].tolist() == [300, 400, 500]
    assert third[0].tolist() == list(range(517, 600))
    assert third[1].tolist() == [list(row) for row in rows[517:]]
    assert third[2].tolist() == []
    with pytest.raises(ValueError, match=r"Graph 0 has sizes \(10, 1\).*Counted from graph 0 of the iterator"):
        next(_read(iter(rows), BUDGET, 5, False))
    fitting = _read(iter([(1, 2), (3, 4)]), BUDGET, 5, False)
    assert [lists(chunk) for chunk in fitting] == [([0, 1], [[1, 2], [3, 4]], [])]


def test_graphs_of_a_list_come_in_random_order_those_left_out_first_and_4096_more_than_the_window():
    table = np.arange(10_000)[:, None] * 3
    chunks = list(_enter(table, None, np.array([7]), 100, 4))
    assert [len(ids) for ids, _, _ in chunks] == [0, 4196, 5804]
    assert [skipped.tolist() for _, _, skipped in chunks] == [[7], [], []]
    ids = np.concatenate([ids for ids, _, _ in chunks])
    assert sorted(ids.tolist()) == list(range(10_000))
    assert np.array_equal(np.concatenate([rows for _, rows, _ in chunks])[:, 0], 3 * ids)
    named = list(_enter(table[:5], np.array([2, 4, 6, 8, 9]), np.empty(0, int), 2, 4))
    assert len(named) == 1
    assert {int(name): int(row) for name, row in zip(named[0][0], named[0][1][:, 0], strict=True)} == {
        2: 0,
        4: 3,
        6: 6,
        8: 9,
        9: 12,
    }


def test_the_first_piece_of_a_random_order_is_short_and_the_others_are_long(monkeypatch):
    asked = []

    def shuffled(num_graphs, key, *, first, then):
        asked.append((num_graphs, first, then))
        return iter([])

    monkeypatch.setitem(window.__globals__, "shuffled", shuffled)
    list(_enter(np.zeros((3, 1), int), None, np.empty(0, int), 100, 4))
    assert asked == [(3, 4196, 131_072)]


def test_graphs_can_come_in_their_own_order():
    table = np.array([[3], [4]])
    given = [lists(chunk) for chunk in _enter(table, None, np.array([9]), 1, None)]
    assert given == [([], [], [9]), ([0, 1], [[3], [4]], [])]
    named = [lists(chunk) for chunk in _enter(table, np.array([5, 8]), np.array([9]), 1, None)]
    assert named == [([], [], [9]), ([5, 8], [[3], [4]], [])]


def test_a_window_of_one_graph_in_order_is_next_fit(native):
    sizes = np.random.default_rng(0).integers(1, 9, (300, 2))
    packs = window(sizes, Budget(sizes=(20, 25), num_graphs=4), window=1, shuffle=False, generator=seeded())
    expected = stream(sizes, Budget(sizes=(20, 25), num_graphs=4))
    assert (packs.indices.tolist(), packs.ptr.tolist()) == (expected.indices.tolist(), expected.ptr.tolist())


def test_what_an_iterator_holds_too_large_comes_with_the_packs_and_no_chunk_is_empty(native):
    rows = [(10, 0)] * 300 + [(4, 4)] * 301 + [(0, 10)]
    chunks = list(iter_window(iter(rows), BUDGET, window=20, generator=seeded(), skip=True))
    assert all(len(chunk) or len(chunk.skipped) for chunk in chunks)
    assert len(chunks[0]) == 0
    assert chunks[0].skipped.tolist() == list(range(276))
    assert sorted(i for chunk in chunks for i in chunk.skipped.tolist()) == [*range(300), 601]
    assert sorted(i for chunk in chunks for i in chunk.indices.tolist()) == list(range(300, 601))
    assert list(iter_window(iter([]), BUDGET)) == []
    assert list(iter_window([], Budget(sizes=(9,), num_graphs=3))) == []


def test_the_default_window_is_2048_graphs_and_packs_come_as_soon_as_it_is_full(native):
    sizes = np.full(9000, 3)
    chunks = list(iter_window(sizes, Budget(sizes=(9,), num_graphs=3), generator=seeded()))
    # 4096 graphs beyond the window come first: 1366 packs, the last closed by a pair; then 2856, and the rest.
    assert [chunk.num_graphs for chunk in chunks] == [4098, 2856, 2046]
    same = window(sizes, Budget(sizes=(9,), num_graphs=3), generator=seeded())
    assert same.indices.tolist() == [i for chunk in chunks for i in chunk.indices.tolist()]


@pytest.mark.parametrize(
    ("sizes", "pending", "compiled"),
    [
        ((1 << 20,), (1 << 20) - 1, True),  # 2**20 * 2**20 * window * 4 must be below 2**62
        ((1 << 20,), 1 << 20, False),
        ((8, 1 << 40), (1 << 17) - 1, True),
        ((8, 1 << 40), 1 << 17, False),
        ((0, 1 << 40), (1 << 20) - 1, True),
        ((0, 1 << 40), 1 << 20, False),
        ((1,), 1 << 30, False),
        (((1 << 22) - 1,), 1, True),
        ((1 << 22,), 1, False),
        ((3, 1 << 22), 1, True),
    ],
)
def test_where_64_bits_could_overflow_the_window_is_interpreted(sizes, pending, compiled):
    if not library.is_available():
        pytest.skip(library.reason())
    opened = _open(Budget(sizes=sizes, num_graphs=3), pending, 0)
    assert isinstance(opened, _Compiled if compiled else Window)


def test_more_graphs_than_any_pack_has_may_be_allowed(native):
    for num_graphs in (2**62 - 1, 2**62, 2**70):
        packs = window([0] * 300, Budget(sizes=(9,), num_graphs=num_graphs), generator=seeded())
        assert [len(pack) for pack in packs] == [300]


def test_a_push_that_closes_no_pack_gives_none(native):
    opened = _open(BUDGET, 4, 0)
    nothing = opened.push(np.empty(0, np.int64), np.empty((0, 2), np.int64), last=False)
    assert (nothing.indices.tolist(), nothing.ptr.tolist()) == ([], [0])
    some = opened.push(np.array([5, 6]), np.array([[1, 2], [3, 4]]), last=True)
    assert (sorted(some.indices.tolist()), some.ptr.tolist()) == ([5, 6], [0, 2])


def test_a_compiled_window_is_freed_and_says_when_memory_runs_out(monkeypatch):
    if not library.is_available():
        pytest.skip(library.reason())
    bound, freed = window.__globals__["_bound"], []

    def spy(name, *types):
        return freed.append if name == "popgeo_window_free" else bound(name, *types)

    monkeypatch.setitem(window.__globals__, "_bound", spy)
    opened = _open(BUDGET, 4, 0)
    handle = opened._handle
    opened._push, opened._read = lambda *arguments: -1, lambda *arguments: None
    with pytest.raises(MemoryError, match="Memory ran out while packing"):
        opened.push(np.array([5]), np.array([[1, 2]]), last=False)
    del opened
    assert freed == [handle]
    bound("popgeo_window_free", (window.__globals__["ctypes"].c_void_p,))(handle)
    with pytest.raises(MemoryError, match="No memory for a window of 4 graphs"):
        _Compiled(lambda *arguments: None, BUDGET, 4, 0)

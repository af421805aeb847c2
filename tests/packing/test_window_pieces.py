"""How graphs come into the window, which window is opened for them, and what it frees and refuses."""

import numpy as np
import torch

from popgeo.packing import Budget, iter_window, stream, window

BUDGET = Budget(sizes=(9, 9), num_graphs=3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lists(chunk) -> tuple[list, ...]:
    return tuple(part.tolist() for part in chunk)


def test_an_iterator_is_read_little_further_than_the_packs_need(native):
    read = []
    rows = (read.append(i) or (i % 9, 1) for i in range(5000))
    next(iter_window(rows, BUDGET, window=5, generator=seeded()))
    assert len(read) <= 5 + 256


def test_sizes_of_which_a_window_exceeds_64_bits_are_packed_right(native):
    for limit, pending in ((1 << 40, 1 << 17), (1 << 40, (1 << 17) - 1), (1 << 60, 3)):
        rows = [(1, limit // 2)] * 6
        chunks = iter_window(iter(rows), Budget(sizes=(8, limit), num_graphs=9), window=pending, generator=seeded())
        assert [len(pack) for chunk in chunks for pack in chunk] == [2, 2, 2]


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


def test_more_graphs_than_any_pack_has_may_be_allowed(native):
    for num_graphs in (2**62 - 1, 2**62, 2**70):
        packs = window([0] * 300, Budget(sizes=(9,), num_graphs=num_graphs), generator=seeded())
        assert [len(pack) for pack in packs] == [300]

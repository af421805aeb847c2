"""Windowed exact fill: full packs, in random order, the same with and without the compiled library."""

from itertools import islice

import numpy as np
import pytest
import torch

from popgeo.native import library
from popgeo.packing import Budget, Packs, iter_window, window


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def molecules(num_graphs: int, seed: int = 0) -> np.ndarray:
    """Sizes like those of small molecules: 9 to 27 nodes, about twice as many edges."""
    rng = np.random.default_rng(seed)
    nodes = rng.binomial(18, 0.5, num_graphs) + 9
    return np.stack([nodes, np.rint(nodes * rng.normal(2.07, 0.06, num_graphs)).astype(int)], axis=1)


def same(one: Packs, other: Packs) -> bool:
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in ("indices", "ptr", "skipped"))


def test_two_sizes_that_only_fit_together_are_paired(native):
    packs = window([3] * 40 + [7] * 40, Budget(sizes=(10,), num_graphs=9), generator=seeded())
    sizes = np.array([3] * 40 + [7] * 40)
    assert sorted(int(sizes[pack].sum()) for pack in packs) == [10] * 40


def test_a_plan_is_the_same_with_and_without_the_compiled_library():
    if not library.is_available():
        pytest.skip(library.reason())
    cases = [
        (molecules(3000), Budget(sizes=(576, 1200), num_graphs=48), 2048),
        (molecules(3000), Budget(sizes=(72, 190), num_graphs=4), 512),
        (molecules(500)[:, 0], Budget(sizes=(36,), num_graphs=9), 64),
        (np.array([[0, 5], [3, 0], [0, 0], [7, 7]] * 30), Budget(sizes=(7, 9), num_graphs=3), 16),
        (np.column_stack([molecules(900), molecules(900, 1)]), Budget(sizes=(150, 400, 200, 330), num_graphs=9), 256),
    ]
    for sizes, budget, pending in cases:
        compiled = window(sizes, budget, window=pending, generator=seeded())
        with library.without_native():
            assert same(compiled, window(sizes, budget, window=pending, generator=seeded()))


def test_small_molecules_fill_nodes_and_edges_at_once(native):
    sizes = molecules(20_000 if native == "compiled" else 6_000)
    ratio = sizes[:, 1].sum() / sizes[:, 0].sum()
    budget = Budget(sizes=(576, int(576 * ratio * 1.005)), num_graphs=64)
    packs = window(sizes, budget, generator=seeded())
    assert len(packs) <= np.ceil(sizes[:, 0].sum() / 576) + 1


def test_the_generator_decides_the_plan(native):
    sizes, budget = molecules(400), Budget(sizes=(144, 320), num_graphs=16)
    plan = window(sizes, budget, window=64, generator=seeded(1))
    assert same(plan, window(sizes, budget, window=64, generator=seeded(1)))
    assert not same(plan, window(sizes, budget, window=64, generator=seeded(2)))


def test_the_order_into_the_window_is_random_too(native):
    orders = [window([1] * 50, Budget(sizes=(1,), num_graphs=1), window=1, generator=seeded(seed)) for seed in (1, 2)]
    assert not same(*orders)


def test_one_after_another_plans_differ_when_they_share_a_generator(native):
    generator = seeded()
    sizes, budget = molecules(400), Budget(sizes=(144, 320), num_graphs=16)
    assert not same(window(sizes, budget, generator=generator), window(sizes, budget, generator=generator))


def test_chunks_add_up_to_the_plan(native):
    sizes, budget = molecules(9_000), Budget(sizes=(144, 320), num_graphs=16)
    chunks = list(iter_window(sizes, budget, window=128, generator=seeded()))
    assert len(chunks) > 2
    assert same(Packs.concatenate(chunks), window(sizes, budget, window=128, generator=seeded()))


def test_an_iterator_is_read_no_further_than_the_window_and_a_little_more(native):
    read = []

    def rows():
        for i, row in enumerate(molecules(100_000).tolist()):
            read.append(i)
            yield row

    chunks = iter_window(rows(), Budget(sizes=(144, 320), num_graphs=16), window=512, generator=seeded())
    first = next(chunks)
    assert len(first) >= 1
    assert len(read) <= 512 + 256
    more = list(islice(chunks, 3))
    assert len(read) <= 512 + 4 * 256
    ids = np.concatenate([first.indices, *(chunk.indices for chunk in more)])
    assert len(set(ids.tolist())) == len(ids)
    assert ids.max() < len(read)


def test_an_iterator_ends_with_every_graph_in_one_pack(native):
    budget = Budget(sizes=(144, 320), num_graphs=16)
    packs = Packs.concatenate(iter_window(iter(molecules(1000).tolist()), budget, window=100, generator=seeded()))
    assert sorted(packs.indices.tolist()) == list(range(1000))


def test_an_iterator_names_the_graph_that_never_fits():
    rows = iter([[3]] * 700 + [[8]])
    with pytest.raises(ValueError, match="Counted from graph 512"):
        list(iter_window(rows, Budget(sizes=(7,), num_graphs=2), window=256, generator=seeded()))


def test_skipped_graphs_are_counted_once(native):
    sizes = [3, 8, 4, 9, 7]
    packs = window(sizes, Budget(sizes=(7,), num_graphs=2), generator=seeded(), skip=True)
    assert packs.skipped.tolist() == [1, 3]
    assert sorted(packs.indices.tolist()) == [0, 2, 4]
    assert window([8, 9], Budget(sizes=(7,), num_graphs=2), skip=True).skipped.tolist() == [0, 1]


def test_batch_means_vary_as_much_as_those_of_random_batches():
    sizes = molecules(60_000)[:, 0]
    packs = window(sizes, Budget(sizes=(288,), num_graphs=40), generator=seeded())
    counts = np.diff(packs.ptr)[:-8]
    means = np.add.reduceat(sizes[packs.indices], packs.ptr[:-1])[:-8] / counts
    assert 0.8 < means.var() / (sizes.var() / counts.mean()) < 1.2


def test_sizes_too_large_for_64_bit_products_are_packed_all_the_same():
    sizes = np.array([2**40, 2**41, 3, 2**40]) + 1
    packs = window(sizes, Budget(sizes=(2**42,), num_graphs=3), generator=seeded())
    assert sorted(packs.indices.tolist()) == [0, 1, 2, 3]


def test_a_window_of_no_graphs_is_refused():
    with pytest.raises(ValueError, match="window is 0"):
        iter_window([1], Budget(sizes=(7,), num_graphs=2), window=0)


def test_where_edges_are_scarcer_they_are_filled_exactly(native):
    random = np.random.default_rng(0)
    sizes = np.stack([random.integers(1, 5, 2000), random.integers(10, 30, 2000)], axis=1)
    budget = Budget(sizes=(100, 150), num_graphs=20)
    packs = window(sizes, budget, window=256, generator=seeded())
    assert len(packs) <= np.ceil(sizes[:, 1].sum() / 150) + 2

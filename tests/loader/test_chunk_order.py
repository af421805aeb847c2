"""A store on disk is shuffled: every graph once, in a new order per epoch, read in stretches before it is needed."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.data import FlatStore, write
from popgeo.loader import FixedSizeDataLoader
from popgeo.loader.chunk_order import ChunkOrder, ReadAhead
from popgeo.packing import Packs
from tests.support.graphs import graph

GRAPHS = [graph(n % 5 + 1, n % 7, n) for n in range(400)]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> FlatStore:
    return write(GRAPHS, tmp_path_factory.mktemp("disk") / "store")


def ids_of(loader: FixedSizeDataLoader) -> list[int]:
    return [int(charge) for batch in loader for charge in batch.charge[batch.graphs_mask]]


def test_chunks_stay_in_one_window_and_windows_are_shuffled():
    order = ChunkOrder(chunk=2, window=4).draw(np.arange(8), torch.Generator().manual_seed(1)).reshape(2, 4)
    assert sorted(order.flatten()) == list(range(8))
    for window in order:
        _, counts = np.unique(window // 2, return_counts=True)
        assert counts.tolist() == [2, 2]


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(23)), st.integers(1, 9), st.integers(1, 4), st.integers(0, 99))
def test_each_position_comes_once_and_windows_hold_graphs_that_lie_together(places, chunk, chunks, seed):
    order = ChunkOrder(chunk=chunk, window=chunk * chunks)
    drawn = order.draw(np.array(places), torch.Generator().manual_seed(seed))
    assert sorted(drawn.tolist()) == list(range(23))
    for start in range(0, 23, order.window):
        touched = np.unique(np.array(places)[drawn[start : start + order.window]] // chunk)
        assert len(touched) <= chunks + 1  # the chunk that is short shifts the others by a part


def test_places_in_an_epoch_are_uniform_and_those_of_distant_graphs_do_not_depend_on_each_other():
    order, draws = ChunkOrder(chunk=4, window=16), 2000
    generator = torch.Generator().manual_seed(0)
    places = np.empty((draws, 64))
    for i in range(draws):
        places[i, order.draw(np.arange(64), generator)] = np.arange(64)
    assert np.abs(places.mean(axis=0) - 31.5).max() < 5 * 18.5 / np.sqrt(draws)
    same_window = (places[:, :1] // 16 == places // 16).mean(axis=0)
    assert (same_window[1:4] == 1).all()  # of one chunk
    assert np.abs(same_window[4:] - 3 / 15).max() < 0.05  # 3 of the 15 other chunks


@pytest.mark.parametrize("strategy", ["PadToMax", "StreamPack", "Window", "Optimal"])
def test_a_loader_over_a_large_store_uses_each_graph_once_in_a_new_order_each_epoch(store, strategy):
    loader = FixedSizeDataLoader(store, 9, shuffle=True, fixed_size_strategy=strategy, shuffle_bytes=20_000, seed=3)
    epochs = [ids_of(loader) for _ in range(2)]
    assert all(sorted(ids) == list(range(400)) for ids in epochs)
    assert epochs[0] != epochs[1]
    again = FixedSizeDataLoader(store, 9, shuffle=True, fixed_size_strategy=strategy, shuffle_bytes=20_000, seed=3)
    assert ids_of(again) == epochs[0]


def test_a_window_of_batches_stays_within_a_few_chunks_and_a_store_that_fits_is_shuffled_whole(store):
    narrow = FixedSizeDataLoader(store, 9, shuffle=True, fixed_size_strategy="StreamPack", shuffle_bytes=20_000)
    order = narrow._epochs.packer.chunk_order
    assert order is not None
    assert len(np.unique(np.array(ids_of(narrow)[: order.window]) // order.chunk)) <= order.window // order.chunk + 1
    for loader in (
        FixedSizeDataLoader(store, 9, shuffle=True),
        FixedSizeDataLoader(FlatStore.from_dataset(GRAPHS), 9, shuffle=True, shuffle_bytes=1),
    ):
        assert loader._epochs.packer.chunk_order is None
    one, other = (
        FixedSizeDataLoader(of, 9, shuffle=True, fixed_size_strategy="Window", seed=0)
        for of in (store, FlatStore.from_dataset(GRAPHS))
    )
    assert ids_of(one) == ids_of(other)


def test_without_shuffle_a_store_on_disk_is_read_in_its_own_order(store):
    assert ids_of(FixedSizeDataLoader(store, 9, fixed_size_strategy="StreamPack", shuffle_bytes=1)) == list(range(400))


@pytest.mark.parametrize("view", [slice(None), slice(None, None, 2)], ids=["all", "every other"])
def test_what_batches_need_has_been_asked_for_before_they_are_made(store, monkeypatch, view):
    asked: set[int] = set()  # stretches of x's file

    def advise(handle, offset, length, advice):
        if os.readlink(f"/proc/self/fd/{handle}").endswith("00-x.bin"):
            asked.update(range(offset // 512, (offset + length) // 512 + 1))

    monkeypatch.setattr(os, "posix_fadvise", advise, raising=False)
    loader = FixedSizeDataLoader(store[view], 9, shuffle=True, fixed_size_strategy="StreamPack", shuffle_bytes=20_000)
    ahead = loader.source._ahead
    x = store.attributes[0].values
    rows = store.row_pointers[store.attributes[0].axis]
    stops = iter(loader)
    for ids in loader.plan():
        next(stops)
        ahead._thread.submit(lambda: None).result()  # what was asked for so far has been done
        for row in loader.source.store.rows(ids):
            place = int(rows[row]) * x.shape[1] * x.element_size()
            assert place // 512 in asked
    assert len(asked) > 10


@pytest.mark.parametrize(("is_chunked", "asks"), [(True, True), (False, False)])
def test_an_order_without_chunks_is_not_read_ahead_since_it_would_ask_for_everything(store, is_chunked, asks):
    order, generator = ChunkOrder(chunk=128, window=8192), torch.Generator().manual_seed(0)
    ids = order.draw(np.arange(10**6), generator) if is_chunked else torch.randperm(10**6, generator=generator).numpy()
    ahead = ReadAhead(store, order)
    asked = []
    ahead._read = asked.append
    ahead.expect(Packs(ids, np.arange(0, 10**6 + 1, 10)), 0)
    ahead._thread.submit(lambda: None).result()
    assert bool(asked) == asks

"""Threads, worker processes and reused memory change no batch."""

import gc

import pytest

from tests.support.graphs import same
from tests.support.loaders import GRAPHS, InMemory, loader_of, seeds


def test_reused_buffers_hold_what_fresh_memory_does(native):
    fresh = list(loader_of(shuffle=True))
    for background in (False, True):
        loader = loader_of(shuffle=True, num_buffers=6, background=background)
        places = set()
        previous = []
        for index, batch in enumerate(loader):
            assert same(batch.x, fresh[index].x)
            previous = [*previous, (batch, fresh[index])][-3:]  # num_buffers // 2 of them stay valid
            assert all(same(own.pos, other.pos) for own, other in previous)
            places.add(batch.x.data_ptr())
        assert len(places) <= (12 if background else 6)


def test_moving_a_reused_batch_to_another_dtype_leaves_the_buffer_alone():
    loader = loader_of(num_buffers=2)
    for batch in loader:
        batch.x = batch.x.double()
        del batch.y
    assert next(iter(loader)).y.shape == (6, 5)


def test_a_background_thread_changes_nothing_and_passes_errors_on():
    assert seeds(loader_of(shuffle=True, background=True)) == seeds(loader_of(shuffle=True))
    next(iter(loader_of(background=True)))  # an iterator that is dropped does not hang

    def fail(data):
        fail.calls += 1
        if fail.calls > 60:
            raise RuntimeError("in a transform")
        return data

    fail.calls = 0
    with pytest.warns(UserWarning, match="has a transform"):
        loader = loader_of(InMemory(GRAPHS, transform=fail), background=True)
    with pytest.raises(RuntimeError, match="in a transform"):
        list(loader)


@pytest.mark.parametrize("items_of", [1, 2])
def test_worker_processes_make_the_same_batches(items_of):
    alone = loader_of(shuffle=True, options=items_of)
    helped = loader_of(shuffle=True, options=items_of, num_workers=2, persistent_workers=True)
    for _ in range(2):
        assert seeds(helped) == seeds(alone)
    workers = helped._maker._pools[0]._iterator._workers
    del helped
    gc.collect()
    assert [worker.exitcode for worker in workers] == [0, 0]  # told to end; torch kills who has not after five seconds

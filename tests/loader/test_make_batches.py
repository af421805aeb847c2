"""Threads, worker processes and reused memory change no batch."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterable
from threading import Thread
from typing import Any

import pytest
import torch

from popgeo import FixedSizeDataLoader
from tests.support.graphs import same
from tests.support.loaders import GRAPHS, OPTIONS, InMemory, loader_of, seeds


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
    workers = helped._maker._idle[0]._iterator._workers
    del helped
    gc.collect()
    assert [worker.exitcode for worker in workers] == [0, 0]  # told to end; torch kills who has not after five seconds


def numbers(loader: Iterable[Any]) -> list[int]:
    return [number for batch in loader for number in batch.charge[batch.graphs_mask].tolist()]


WORKERS = [{"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}, {}, {"background": True}]


@pytest.mark.parametrize("choices", WORKERS, ids=str)
def test_a_look_or_an_evaluation_within_an_epoch_changes_no_batch_no_later_epoch_and_no_state(choices):
    alone, loader = loader_of(shuffle=True), loader_of(shuffle=True, **choices)
    epochs = [numbers(alone) for _ in range(3)]
    found, other = list[int](), loader_of(shuffle=True, **choices)
    for number, batch in enumerate(loader):
        found += numbers([batch])
        if number == 1:
            next(iter(loader))
        if number == 2:
            assert sorted(numbers(loader)) == list(range(40))
            other.load_state_dict(loader.state_dict())
            assert found + numbers(other) == epochs[0]
    assert [found, numbers(loader), numbers(loader)] == epochs


@pytest.mark.parametrize("choices", WORKERS, ids=str)
def test_two_passes_at_a_time_are_two_epochs(choices):
    alone, loader = loader_of(shuffle=True), loader_of(shuffle=True, **choices)
    pairs = list(zip(loader, loader, strict=False))
    assert [numbers(one) for one in zip(*pairs, strict=True)] == [numbers(alone), numbers(alone)]
    assert sorted(numbers(loader)) == list(range(40))


@pytest.mark.parametrize("choices", WORKERS[:3], ids=str)
def test_threads_that_share_a_loader_have_a_whole_epoch_each(choices):
    loader = loader_of(shuffle=True, **choices)
    found = list[list[int]]()
    threads = [Thread(target=lambda: found.append(numbers(loader))) for _ in range(2)]
    for act in (Thread.start, Thread.join):
        for thread in threads:
            act(thread)
    assert [sorted(one) for one in found] == [list(range(40))] * 2


class InterruptedAt:
    """A dataset with one graph that interrupts its process and the workers, as Ctrl-C in a terminal does."""

    def __init__(self) -> None:
        self.process, self.is_armed = os.getpid(), torch.ones(1).share_memory_()

    def __len__(self) -> int:
        return len(GRAPHS)

    def __getitem__(self, i: int) -> Any:
        if i == 30 and self.is_armed.item():
            self.is_armed.zero_()
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(self.process, signal.SIGINT)
        return GRAPHS[i]


@pytest.mark.filterwarnings("ignore:.* does not hold its graphs")
@pytest.mark.parametrize("persistent", [False, True])
def test_after_an_interrupt_the_next_epoch_is_whole(persistent):
    dataset = InterruptedAt()
    loader = FixedSizeDataLoader(
        dataset, fixed_size_options=OPTIONS, over_size_strategy="TrimNodes", num_workers=2,
        persistent_workers=persistent,
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        for _ in loader:
            pass
    assert numbers(loader) == list(range(40))
    batches = iter(loader)
    next(batches)
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGINT)
    del batches
    assert numbers(loader) == list(range(40))

"""A child that is forked while threads of its parent predict, load or hold locks never hangs."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch_geometric.data import Data

from popgeo import FixedSizeDataLoader, FixedSizeOptions, Predictor, compile_forward, ops
from popgeo.capture.held_state import ONE_AT_A_TIME
from popgeo.forked import Lock
from popgeo.loader.prefetch import in_background
from popgeo.progress import progress

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
GRAPHS = [Data(x=torch.ones(n, 4), edge_index=torch.tensor([[0], [1]])) for n in (2, 9, 5, 7)]
SECONDS = 60


class Sums(torch.nn.Module):
    def forward(self, x, edge_index):
        return ops.scatter(x[edge_index[0]], edge_index[1], 0, dim_size=x.size(0))


def status_of_child(act: Callable[[], object]) -> int | None:
    """Return the exit status of a forked child that calls a function; None if it still runs after a minute."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_kernels_of_several_threads_run_in_a_child(two_threads):
    src, index = torch.randn(100_000, 64), torch.arange(100_000) // 20

    def work() -> None:
        ops.scatter(src, index, 0, None, 5000, "max")
        torch.randn(1 << 20).sin().sum()

    work()
    assert status_of_child(work) == 0


def test_a_lock_that_another_thread_holds_is_free_in_a_child():
    held, done = threading.Event(), threading.Event()
    lock = Lock()

    def hold() -> None:
        with lock, ONE_AT_A_TIME:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def work() -> None:
        with lock, ONE_AT_A_TIME:
            pass

    try:
        assert status_of_child(work) == 0
    finally:
        done.set()
        thread.join()


def test_a_block_that_forks_ends_in_the_child_too():
    lock = Lock()

    def work() -> None:
        lock.__exit__(None, None, None)
        with lock:
            pass

    with lock:
        assert status_of_child(work) == 0


def test_a_child_predicts_steps_and_loads_while_threads_of_its_parent_do(two_threads):
    predictor = Predictor(Sums(), FixedSizeOptions(32, 16, num_graphs=3), "none")
    step = compile_forward(torch.nn.Linear(4, 4).requires_grad_(False))
    loader = FixedSizeDataLoader(GRAPHS * 20, 3)
    acts = [
        lambda: predictor(GRAPHS),
        lambda: step(torch.ones(2, 4)),
        lambda: list(loader),
        lambda: list(progress(range(9), "going", "step")),
    ]
    for act in acts:
        act()
    stop = threading.Event()

    def repeat(act: Callable[[], object]) -> None:
        while not stop.is_set():
            act()

    threads = [threading.Thread(target=repeat, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    try:
        for act in acts * 3:
            assert status_of_child(act) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_pass_that_the_parent_began_is_refused_in_a_child_and_ends_there():
    items = in_background(iter(range(9)))
    next(items)

    def work() -> None:
        with pytest.raises(RuntimeError, match="Another process began"):
            list(items)

    def leave() -> None:
        items.close()

    assert status_of_child(work) == 0
    assert status_of_child(leave) == 0
    assert list(items) == list(range(1, 9))

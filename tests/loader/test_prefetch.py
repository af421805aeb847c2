"""An iterator that runs ahead on a thread."""

import random
import signal
import subprocess
import sys
import time

import pytest

from popgeo.loader.prefetch import in_background


def test_items_come_in_order_and_ahead_of_time():
    made = []

    def items():
        for i in range(5):
            made.append(i)
            yield i

    ahead = in_background(items(), depth=2)
    assert next(ahead) == 0
    deadline = time.monotonic() + 5
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert made == [0, 1, 2, 3]  # one in use, two ready, one waiting for room
    assert list(ahead) == [1, 2, 3, 4]


def test_an_item_that_is_an_exception_is_an_item():
    first, second = in_background(iter([ValueError("one"), KeyError("two")]))
    assert (str(first), second.args) == ("one", ("two",))


def test_an_error_is_raised_where_its_item_would_have_come():
    def items():
        yield 1
        raise KeyError("broken")

    ahead = in_background(items())
    assert next(ahead) == 1
    with pytest.raises(KeyError, match="broken"):
        next(ahead)


def left_beside(others):
    """Return the running threads except these, after up to five seconds for threads that are ending."""
    deadline = time.monotonic() + 5
    while (left := set(sys._current_frames()) - others) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def test_closing_early_stops_the_thread():
    others = set(sys._current_frames())
    ahead = in_background(iter(range(1000)))
    next(ahead)
    assert set(sys._current_frames()) - others
    ahead.close()
    assert not left_beside(others)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no alarm")
def test_interrupts_at_any_moment_leave_no_thread_behind():
    def interrupt(*of_the_signal):
        raise KeyboardInterrupt

    def items():
        for i in range(50):
            time.sleep(1e-4)
            yield i

    moments = random.Random(0)
    others = set(sys._current_frames())
    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for _ in range(80):
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(5e-5, 5e-3))
                for _ in in_background(items()):
                    pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 40
    assert not left_beside(others)


def test_a_program_ends_although_a_pass_is_open():
    script = "from popgeo.loader.prefetch import in_background; numbers = in_background(iter(range(9)), 2)"
    ended = subprocess.run([sys.executable, "-c", f"{script}; print(next(numbers))"], capture_output=True, timeout=100)
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, [b"0"], b"")

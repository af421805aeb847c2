"""Runs an iterator ahead of its consumer, on a thread of its own."""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")
_END = object()


def in_background(items: Iterator[T], depth: int = 1) -> Iterator[T]:
    """The same items in the same order, up to `depth` of them made ahead of time on a thread.

    The compiled library and torch release Python's lock while they copy, so the thread runs beside a training step. An
    error is raised where the item would have come; closing the iterator early stops the thread.

    Example:
        >>> list(in_background(iter([1, 2, 3])))
        [1, 2, 3]
    """
    ready: queue.Queue[object] = queue.Queue(maxsize=depth)
    stopped = threading.Event()
    thread = threading.Thread(target=_produce, args=(items, ready, stopped), daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if item is _END:
                return
            if isinstance(item, _Failure):
                raise item.error
            yield item  # type: ignore[misc]  # the queue also carries the two marks above
    finally:
        stopped.set()
        while thread.is_alive():  # the thread may wait for room in the queue
            try:
                ready.get_nowait()
            except queue.Empty:
                thread.join(timeout=0.01)


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _produce(items: Iterator[T], ready: "queue.Queue[object]", stopped: threading.Event) -> None:
    try:
        for item in items:
            ready.put(item)
            if stopped.is_set():
                return
        ready.put(_END)
    except BaseException as error:  # handed to the consumer, whatever it is
        ready.put(_Failure(error))

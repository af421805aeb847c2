"""An iterator that runs ahead of its consumer, on its own thread."""

import _thread
import atexit
import os
import queue
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar

T = TypeVar("T")
_END = object()
_LOOKS_EACH = 0.1  # seconds between checks whether the consumer still exists
_running: "set[tuple[int, queue.SimpleQueue[None]]]" = set()  # each thread's process, and the queue that shows its end
_at_exit: list[bool] = []  # has an entry when the interpreter ends


def in_background(items: Iterator[T], depth: int = 1) -> Iterator[T]:
    """Yield the same items in the same order, with up to `depth` of them made ahead of time on a thread.

    The compiled library and torch release Python's lock while they copy, so the thread runs next to a training step. An
    error is raised in place of its item. Closing the iterator early stops the thread.

    Example:
        >>> list(in_background(iter([1, 2, 3])))
        [1, 2, 3]
    """
    consumer = _Consumer()
    # These queues are written in C, so an interrupt leaves no lock held. Each entry of `room` allows one more item.
    ready: queue.SimpleQueue[object] = queue.SimpleQueue()
    room: queue.SimpleQueue[None] = queue.SimpleQueue()
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()
    begun, process = False, os.getpid()
    try:
        for _ in range(depth):
            room.put(None)
        # Not a `threading.Thread`: an interrupt within its locks, which are in Python, breaks them.
        _thread.start_new_thread(_produce, (items, ready, room, ended, weakref.ref(consumer)))
        begun = True
        _running.add((process, ended))
        while True:
            if os.getpid() != process:
                raise RuntimeError(
                    "Another process began this pass over the batches. Begin a new pass in this process."
                )
            item = ready.get()
            if item is _END:
                return
            if isinstance(item, _Failure):
                raise item.error
            room.put(None)
            yield item  # type: ignore[misc]  # the queue also carries the two marks above
    finally:
        del consumer
        room.put(None)  # the thread may wait for it
        if begun and os.getpid() == process:
            ended.get()
            _running.discard((process, ended))


class _Consumer:
    """A token that is deleted when the consumer can request no more items, whatever the reason."""


class _Failure(NamedTuple):
    """An error of the iterator. It has its own class, because an item may be an exception, too."""

    error: BaseException


def _produce(
    items: Iterator[T],
    ready: "queue.SimpleQueue[object]",
    room: "queue.SimpleQueue[None]",
    ended: "queue.SimpleQueue[None]",
    consumer: "weakref.ref[_Consumer]",
) -> None:
    try:
        for item in items:
            while consumer() is not None and not _at_exit:
                with suppress(queue.Empty):
                    room.get(timeout=_LOOKS_EACH)
                    break
            if _at_exit:
                raise RuntimeError("The interpreter ends, and with it this pass over the batches.")
            if consumer() is None:
                return
            ready.put(item)
        ready.put(_END)
    except BaseException as error:  # the consumer raises it
        ready.put(_Failure(error))
    finally:
        ended.put(None)


@atexit.register
def _end_all() -> None:
    """End the threads of open passes while they can still run; later a pass would wait for its thread forever."""
    _at_exit.append(True)
    for process, ended in list(_running):
        if process == os.getpid():
            ended.get()
            ended.put(None)  # for the pass itself, which is closed later

"""Runs an iterator ahead of its consumer, on a thread of its own."""

import _thread
import os
import queue
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar

T = TypeVar("T")
_END = object()
_LOOKS_EACH = 0.1  # seconds, for a consumer that has gone silently


def in_background(items: Iterator[T], depth: int = 1) -> Iterator[T]:
    """The same items in the same order, up to `depth` of them made ahead of time on a thread.

    The compiled library and torch release Python's lock while they copy, so the thread runs next to a training step. An
    error is raised where the item would have come; closing the iterator early stops the thread.

    Example:
        >>> list(in_background(iter([1, 2, 3])))
        [1, 2, 3]
    """
    consumer = _Consumer()
    # Both are of C, so an interrupt leaves no lock of theirs behind; each place in `room` is that of an item to come.
    ready: queue.SimpleQueue[object] = queue.SimpleQueue()
    room: queue.SimpleQueue[None] = queue.SimpleQueue()
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()
    begun, process = False, os.getpid()
    try:
        for _ in range(depth):
            room.put(None)
        # Not a `threading.Thread`: its locks are written in Python, and an interrupt within them leaves them broken.
        _thread.start_new_thread(_produce, (items, ready, room, ended, weakref.ref(consumer)))
        begun = True
        while True:
            if os.getpid() != process:
                raise RuntimeError("Another process began this pass over the batches. Begin a new one in this process.")
            item = ready.get()
            if item is _END:
                return
            if isinstance(item, _Failure):
                raise item.error
            room.put(None)
            yield item  # type: ignore[misc]  # the queue also carries the two marks above
    finally:
        del consumer
        room.put(None)  # it may wait for that
        if begun and os.getpid() == process:
            ended.get()


class _Consumer:
    """Lives as long as items may be asked for; an interrupt at any point only ends it."""


class _Failure(NamedTuple):
    error: BaseException  # an item of the pass may be an exception, too


def _produce(
    items: Iterator[T],
    ready: "queue.SimpleQueue[object]",
    room: "queue.SimpleQueue[None]",
    ended: "queue.SimpleQueue[None]",
    consumer: "weakref.ref[_Consumer]",
) -> None:
    try:
        for item in items:
            while consumer() is not None:
                with suppress(queue.Empty):
                    room.get(timeout=_LOOKS_EACH)
                    break
            if consumer() is None:
                return
            ready.put(item)
        ready.put(_END)
    except BaseException as error:  # handed to the consumer, whatever it is
        ready.put(_Failure(error))
    finally:
        ended.put(None)

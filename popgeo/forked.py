"""What a forked child needs: locks of its own, and no threads of OpenMP, since threads do not survive a fork."""

import os
import threading
import weakref
from types import TracebackType

import torch


class Lock:
    """A lock as `threading.RLock`, which is free in a forked child, whatever other threads held in the parent.

    Example:
        >>> with Lock() as lock, lock:
        ...     print("held twice by one thread")
        held twice by one thread
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entered: list[threading.RLock] = []
        _LOCKS.add(self)

    def __enter__(self) -> "Lock":
        lock = self._lock
        lock.acquire()
        self._entered.append(lock)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._entered.pop().release()  # that of the parent, if the block has forked


_LOCKS: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _in_child() -> None:
    for lock in list(_LOCKS):
        lock._lock = threading.RLock()
    torch.set_num_threads(1)  # a parallel region would wait for threads of the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

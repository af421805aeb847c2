"""Locks that are free in a forked child, and one thread for torch there, since threads do not survive a fork."""

import _thread
import os
import weakref

import torch


class Lock(_thread.RLock):  # type: ignore[misc]  # final in the stubs alone
    """A `threading.RLock` that is free in a forked child, even if another thread of the parent held it.

    `with` takes and frees it in C. So Ctrl-C cannot arrive in between and leave it taken.

    Example:
        >>> lock = Lock()
        >>> with lock, lock:
        ...     print("held twice by one thread")
        held twice by one thread
    """

    def __init__(self) -> None:
        _LOCKS.add(self)


_LOCKS: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _in_child() -> None:
    for lock in list(_LOCKS):
        if not lock._is_owned():  # type: ignore[attr-defined]  # the forking thread keeps its locks
            lock._at_fork_reinit()  # type: ignore[attr-defined]
    torch.set_num_threads(1)  # a parallel region would wait for threads that only the parent has


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

"""What a forked child needs: locks of its own, and no threads of OpenMP, since threads do not survive a fork."""

import _thread
import os
import weakref

import torch


class Lock(_thread.RLock):  # type: ignore[misc]  # final in the stubs alone
    """A lock as `threading.RLock`, which is free in a forked child, whatever other threads held in the parent.

    A block takes and frees it without a step of Python in between, in which Ctrl-C could leave it taken.

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
        if not lock._is_owned():  # type: ignore[attr-defined]  # the thread that forks still holds its own
            lock._at_fork_reinit()  # type: ignore[attr-defined]
    torch.set_num_threads(1)  # a parallel region would wait for threads of the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

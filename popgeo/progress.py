"""Progress bars and lines for work that takes longer than a second or two."""

import builtins
import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

Item = TypeVar("Item")


if hasattr(os, "register_at_fork"):  # each bar takes the lock of all, which a thread of the parent may hold
    os.register_at_fork(after_in_child=lambda: tqdm.set_lock(threading.RLock()))


def progress(items: Iterable[Item], description: str, unit: str, show: bool | None = None) -> Iterator[Item]:
    """The items, with a bar once they have taken longer than a second.

    Args:
        items: What to go through.
        description: Stands before the bar.
        unit: What one item is.
        show: Whether to show it; None means at a terminal and in notebooks.

    Example:
        >>> list(progress(range(3), "measuring", "graph", show=False))
        [0, 1, 2]
    """
    return iter(tqdm(items, description, unit=f" {unit}", **_look(show)))


def bar(description: str, unit: str, total: int | None = None, show: bool | None = None) -> tqdm:
    """A progress bar that `update(n)` advances; it disappears when the work is done.

    Args:
        description: Stands before the bar.
        unit: The name of the counted items.
        total: How many there will be.
        show: As `progress` takes it.

    Example:
        >>> with bar("epoch 1", "graphs", total=64, show=False) as shown:
        ...     _ = shown.update(32)
    """
    return tqdm(desc=description, total=total, unit=f" {unit}", **_look(show))


@contextlib.contextmanager
def announced(line: str, show: bool | None = None, seconds: float = 2.0) -> Iterator[None]:
    """Print a line to the standard error if the block takes longer than a few seconds.

    Args:
        line: The line.
        show: Whether to print it. Default: at a terminal and in notebooks.
        seconds: Time to wait before it is printed. Default: 2.

    Example:
        >>> with announced("popgeo: compiling ..."):
        ...     pass
    """
    timer = threading.Timer(seconds, tqdm.write, [line], {"file": sys.stderr})
    timer.daemon = True
    if is_seen(show):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _look(show: bool | None) -> dict[str, Any]:
    """When and where a bar is drawn: past the stream of a command that escapes what moves the cursor."""
    return {"delay": 1, "leave": False, "disable": not is_seen(show), "file": getattr(sys.stderr, "raw", sys.stderr)}


def is_seen(show: bool | None = None) -> bool:
    """Whether a bar would be looked at: at a terminal and in notebooks, where `show` does not say otherwise.

    In a log file every update would be a line of its own.
    """
    return sys.stderr.isatty() or hasattr(builtins, "__IPYTHON__") if show is None else show

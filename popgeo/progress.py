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


if hasattr(os, "register_at_fork"):  # all bars share one lock, which a thread of the parent may hold during the fork
    os.register_at_fork(after_in_child=lambda: tqdm.set_lock(threading.RLock()))


def progress(items: Iterable[Item], description: str, unit: str, show: bool | None = None) -> Iterator[Item]:
    """Iterate over the items, with a progress bar if this takes longer than a second.

    Args:
        items: Items to iterate over.
        description: Text before the bar.
        unit: Name of one item.
        show: Whether to show the bar. Default: at a terminal and in notebooks.

    Example:
        >>> list(progress(range(3), "measuring", "graph", show=False))
        [0, 1, 2]
    """
    return iter(tqdm(items, description, unit=f" {unit}", **_look(show)))


def bar(description: str, unit: str, total: int | None = None, show: bool | None = None) -> tqdm:
    """Return a progress bar; its `update(n)` advances it, and it disappears when the work is done.

    Args:
        description: Text before the bar.
        unit: Name of the counted items.
        total: Number of items. Default: unknown.
        show: Whether to show the bar. Default: at a terminal and in notebooks.

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
    """Return tqdm's arguments for the delay and the stream of a bar.

    The stream is the `raw` stream of a `PrintableStream`, which would escape the cursor moves of a bar.
    """
    return {"delay": 1, "leave": False, "disable": not is_seen(show), "file": getattr(sys.stderr, "raw", sys.stderr)}


def is_seen(show: bool | None = None) -> bool:
    """Check whether bars are shown: as `show` says, or else at a terminal and in notebooks.

    In a log file each update of a bar would add a line.
    """
    return sys.stderr.isatty() or hasattr(builtins, "__IPYTHON__") if show is None else show

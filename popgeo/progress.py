"""A progress bar where a pass over a dataset lasts, and none where it does not."""

import builtins
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")


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
    if show is None:
        show = sys.stderr.isatty() or hasattr(builtins, "__IPYTHON__")
    return iter(tqdm(items, description, unit=f" {unit}", delay=1, leave=False, disable=not show))

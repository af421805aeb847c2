"""An opened file of structures."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class OpenFile(NamedTuple):
    """A file with its number of structures, a function that reads one as ASE's `Atoms`, and the file's metadata."""

    num_structures: int
    read: Callable[[int], Any]
    metadata: Mapping[str, Any] = {}

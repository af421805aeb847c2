"""What is known of a file of structures after a look into it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class OpenFile(NamedTuple):
    """How many structures a file has, what reads one of them as an `Atoms` of ASE, and what is said of the file."""

    num_structures: int
    read: Callable[[int], Any]
    metadata: Mapping[str, Any] = {}

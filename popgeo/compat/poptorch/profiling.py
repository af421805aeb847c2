"""Trace points for Graphcore's profiler, which is not used here."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from popgeo.compat.account import ignored

T = TypeVar("T")


class Channel:
    """A named set of trace points that nobody records.

    Example:
        >>> with Channel("training").tracepoint("epoch"):
        ...     pass
    """

    def __init__(self, name: str) -> None:
        self.name = name
        ignored("profiling.Channel", "Graphcore's profiler is not used here; executor.report tells where cycles go")

    @contextmanager
    def tracepoint(self, name: str) -> Iterator[None]:
        """The block would be one event of the trace."""
        yield

    def instrument(self, obj: T, *methods: str) -> T:
        """The object itself, whose methods would be events of the trace."""
        return obj

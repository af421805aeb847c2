"""A stopwatch for the time that a training loop waits for batches."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Waiting:
    """The time that the consumer of an epoch waited for items.

    Attributes:
        seconds: Total time from each request to its item. The first item takes longest: the epoch is planned before it.
        items: Number of items.
        between: Total seconds from each item to the next request, while the consumer works.
    """

    seconds: float = 0.0
    items: int = 0
    between: float = 0.0

    @property
    def share(self) -> float:
        """Share of the time so far that was spent waiting, 0 to 1.

        Example:
            >>> Waiting(seconds=1.0, items=4, between=3.0).share
            0.25
        """
        total = self.seconds + self.between
        return self.seconds / total if total else 0.0

    def of(self, items: Iterator[T], began: float | None = None) -> Iterator[T]:
        """Yield the items, and measure their number and the time until each arrives.

        Args:
            items: The items.
            began: Time of `time.perf_counter` at which the first item was requested. Default: now.

        Example:
            >>> waiting = Waiting()
            >>> list(waiting.of(iter("ab"))), waiting.items
            (['a', 'b'], 2)
        """
        asked = time.perf_counter() if began is None else began
        for item in items:
            given = time.perf_counter()
            self.seconds += given - asked
            self.items += 1
            yield item
            asked = time.perf_counter()
            self.between += asked - given

    def __str__(self) -> str:
        return f"waited {self.seconds:.3f} s for {self.items:,} items, {self.share:.1%} of the time"

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
        seconds: Total time from each request to its item; the first item takes longest.
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

    def of(self, items: Iterator[T]) -> Iterator[T]:
        """Yield the items, and measure their number and the time until each arrives.

        Example:
            >>> waiting = Waiting()
            >>> list(waiting.of(iter("ab"))), waiting.items
            (['a', 'b'], 2)
        """
        asked = time.perf_counter()
        for item in items:
            given = time.perf_counter()
            self.seconds += given - asked
            self.items += 1
            yield item
            asked = time.perf_counter()
            self.between += asked - given

    def __str__(self) -> str:
        return f"waited {self.seconds:.3f} s for {self.items:,} items, {self.share:.1%} of the time"

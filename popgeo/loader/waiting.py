"""How long a training waited for its batches: if it did, the loader starves the step."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Waiting:
    """What the items of an epoch have cost the one who asked for them.

    Attributes:
        seconds: From each request to its item, all together; making the first one takes longest.
        items: How many were asked for.
        between: Seconds from each item to the next request: what the consumer did meanwhile.
    """

    seconds: float = 0.0
    items: int = 0
    between: float = 0.0

    @property
    def share(self) -> float:
        """The share of the time so far that was spent waiting; 0 if no step waits.

        Example:
            >>> Waiting(seconds=1.0, items=4, between=3.0).share
            0.25
        """
        total = self.seconds + self.between
        return self.seconds / total if total else 0.0

    def of(self, items: Iterator[T]) -> Iterator[T]:
        """The same items; each is counted, and the time until it comes.

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

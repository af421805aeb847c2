"""How graphs are put together into batches: the strategies of the loader, and functions of the user's."""

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias, TypeVar

import numpy as np

from popgeo.packing import Packs, optimal, stream, window


class FixedSizeStrategy(Enum):
    """How graphs are put together into batches.

    Example:
        >>> FixedSizeStrategy["Window"]
        <FixedSizeStrategy.Window: 2>
    """

    PadToMax = 0
    """The same number of graphs, `batch_size - 1`, in every batch."""
    StreamPack = 1
    """As many graphs as fit, in the order of the (shuffled) dataset."""
    Window = 2
    """Full batches, as random as a shuffle: drawn from a window of pending graphs and finished by an exact fill."""
    Optimal = 3
    """As few batches as can be, for batches of a few graphs each."""


DRAWN = (FixedSizeStrategy.Window, FixedSizeStrategy.Optimal)
"""The strategies that put the graphs in a random order of their own."""


E = TypeVar("E", bound=Enum)


def member(enum: type[E], value: E | str) -> E:
    """A member of an enum, also by its name.

    Example:
        >>> member(FixedSizeStrategy, "Window")
        <FixedSizeStrategy.Window: 2>
    """
    if isinstance(value, enum):
        return value
    if isinstance(value, str) and value in enum.__members__:
        return enum[value]
    raise ValueError(f"{value!r} is not a {enum.__name__}; pass one of {list(enum.__members__)}.")


def strategy_of(strategy: "FixedSizeStrategy | Packing | str") -> "FixedSizeStrategy | Packing":
    """A strategy, also by its name; functions pass as they are."""
    return strategy if callable(strategy) and not isinstance(strategy, Enum) else member(FixedSizeStrategy, strategy)


Packing: TypeAlias = Callable[..., Packs]
"""`packing(sizes, budget, *, generator) -> Packs`, as in `popgeo.packing`."""


PACKINGS: dict[FixedSizeStrategy, Packing] = {
    FixedSizeStrategy.StreamPack: stream,
    FixedSizeStrategy.Window: window,
    FixedSizeStrategy.Optimal: optimal,
}


def in_equal_numbers(order: np.ndarray, number: int, drop_last: bool) -> Packs:
    """Equally many in every batch but the last, which `drop_last` drops if it has fewer.

    Example:
        >>> [pack.tolist() for pack in in_equal_numbers(np.array([4, 2, 0]), 2, drop_last=False)]
        [[4, 2], [0]]
    """
    stop = len(order) // number * number if drop_last else len(order)
    return Packs(order[:stop], np.append(np.arange(0, stop, number), stop) if stop else np.zeros(1, np.int64))

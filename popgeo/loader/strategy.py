"""Strategies for grouping graphs into batches: four built-in strategies, or any function from the user.

To add a strategy, add one row to `FixedSizeStrategy`.
"""

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias, TypeVar

import numpy as np

from popgeo.packing import Packs, optimal, stream, window

Packing: TypeAlias = Callable[..., Packs]
"""A function `packing(sizes, budget, *, generator) -> Packs`, such as those in `popgeo.packing`.

Any such function is a strategy: pass it as `fixed_size_strategy`. The loader checks that its packs use each graph once
and stay within the budget.
"""


class FixedSizeStrategy(Enum):
    """A way to group graphs into batches.

    Each row has its number, its function, and whether the function draws a random order by itself. The order of the
    other strategies is the dataset's order, shuffled if the user asks for it.

    Example:
        >>> FixedSizeStrategy["Window"]
        <FixedSizeStrategy.Window: 2>
    """

    packing: Packing | None
    draws_order: bool

    PadToMax = 0, None
    """The same number of graphs, `batch_size - 1`, in every batch. Sizes do not count, so it has no function."""
    StreamPack = 1, stream
    """As many graphs as fit, in the order of the (shuffled) dataset."""
    Window = 2, window, True
    """Full batches, as random as a shuffle: drawn from a window of pending graphs and finished by an exact fill."""
    Optimal = 3, optimal, True
    """As few batches as possible, for batches of a few graphs each."""

    def __new__(cls, number: int, packing: Packing | None, draws_order: bool = False) -> "FixedSizeStrategy":
        """Return a member with the number as its value."""
        member = object.__new__(cls)
        member._value_, member.packing, member.draws_order = number, packing, draws_order
        return member


E = TypeVar("E", bound=Enum)


def member(enum: type[E], value: E | str) -> E:
    """Return the member of an enum with this name; a member is returned unchanged.

    Raises:
        ValueError: the enum has no such member.

    Example:
        >>> member(FixedSizeStrategy, "Window")
        <FixedSizeStrategy.Window: 2>
    """
    if isinstance(value, enum):
        return value
    if isinstance(value, str) and value in enum.__members__:
        return enum[value]
    raise ValueError(f"{value!r} is not a {enum.__name__}; pass one of {list(enum.__members__)}.")


def strategy_of(strategy: FixedSizeStrategy | Packing | str) -> FixedSizeStrategy | Packing:
    """Return the strategy with this name; members and functions are returned unchanged."""
    return strategy if callable(strategy) and not isinstance(strategy, Enum) else member(FixedSizeStrategy, strategy)


def in_equal_numbers(order: np.ndarray, number: int, drop_last: bool) -> Packs:
    """Group the items of an order by `number`. With `drop_last`, drop the last group if it is incomplete.

    Example:
        >>> [pack.tolist() for pack in in_equal_numbers(np.array([4, 2, 0]), 2, drop_last=False)]
        [[4, 2], [0]]
    """
    stop = len(order) // number * number if drop_last else len(order)
    return Packs(order[:stop], np.append(np.arange(0, stop, number), stop) if stop else np.zeros(1, np.int64))

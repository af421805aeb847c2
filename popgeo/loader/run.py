"""The position of a run: the batches of an epoch that were used, also before the number of ranks changed."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from popgeo.loader.shard import Shard
from popgeo.packing import Packs

_MOST = 2**64
_MOST_RANKS = 2**20


class EpochProgress(NamedTuple):
    """The part of an epoch that was used with one number of ranks.

    Args:
        world_size: Number of ranks.
        group: Batches of an item.
        num_items: Items that each rank has used.
    """

    world_size: int
    group: int
    num_items: int

    @property
    def num_packs(self) -> int:
        """Number of batches that all ranks together have used."""
        return self.world_size * self.group * self.num_items


def used_of(state: Mapping[str, Any], num_items: int) -> tuple[EpochProgress, ...]:
    """Return the used parts of an epoch from a loader's state.

    Args:
        state: Result of a loader's `state_dict`.
        num_items: Graphs or seeds of the loader. Each batch has at least one.

    Raises:
        ValueError: a number is missing, is not an integer, or is impossible.

    Example:
        >>> used_of({"epoch": 0, "seed": 1, "position": -5, "used": [[1, 1, -5]]}, num_items=9)
        Traceback (most recent call last):
            ...
        ValueError: The state says that 'position' is -5; allowed are 0 to 9.
    """
    used, batches = state.get("used", ()), state.get("batches")
    is_table = isinstance(used, list | tuple) and all(isinstance(one, list | tuple) and len(one) == 3 for one in used)
    if not is_table:
        raise ValueError(f"The state says that 'used' is {str(used)[:99]}; pass lists of three numbers.")
    limits = {"epoch": (0, _MOST), "position": (0, num_items)}
    if state.get("seed", 0) is not None or used:  # None before the first epoch
        limits["seed"] = -_MOST, _MOST
    numbers = [(name, state.get(name, 0 if name == "position" else None), limit) for name, limit in limits.items()]
    numbers += [("batches", batches, (0, _MOST))] if used or batches is not None else []
    for one in used:
        limits_of_one = (1, _MOST_RANKS), (1, _MOST_RANKS), (0, num_items)
        numbers += [("used", number, limit) for number, limit in zip(one, limits_of_one, strict=True)]
    for name, number, (least, most) in numbers:
        if not isinstance(number, int | np.integer) or isinstance(number, bool) or not least <= number <= most:
            raise ValueError(f"The state says that {name!r} is {str(number)[:99]}; allowed are {least} to {most}.")
    ranks = tuple(EpochProgress(*one) for one in used)
    positions = {0, *(one.num_items for one in ranks)}
    # Each batch has an item, except batches of padding in the last round.
    full = sum(one.num_packs - one.world_size * one.group for one in ranks if one.num_items)
    if full > num_items or state.get("position", 0) not in positions:
        raise ValueError(
            f"The state says that {[list(one) for one in ranks]} were used and the position is "
            f"{state.get('position')}, which is impossible with {num_items} items. Pass the result of state_dict()."
        )
    return ranks


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochPlan:
    """The batches of one epoch.

    Args:
        key: Seed and epoch.
        shard: Shard of this process.
        used: Batches used before the number of ranks changed.
        whole: Batches of all ranks, before any is split.
        left: Batches that remain for the present number of ranks.
        packs: Batches of this rank.
    """

    key: tuple[int, int]
    shard: Shard
    used: tuple[EpochProgress, ...]
    whole: Packs
    left: Packs
    packs: Packs

    @property
    def num_items(self) -> int:
        """Number of items of this rank."""
        return len(self.packs) // self.shard.group

    @cached_property
    def fingerprint(self) -> int:
        """Number that is equal on all ranks, and differs for another order or packing."""
        whole = self.whole
        return zlib.crc32(np.ascontiguousarray(whole.indices).data, zlib.crc32(np.ascontiguousarray(whole.ptr).data))


class Run:
    """One pass over the items of an epoch, with the number of items that it has yielded.

    Args:
        epoch: Number of the epoch.
        used: Used parts of the epoch; the last one is for the present number of ranks.
        resumes: Fingerprint of the batches when the state was taken; None if no state was loaded.
    """

    __slots__ = ("began", "epoch", "has_started", "is_copy", "is_over", "outer", "resumes", "used")

    def __init__(self, epoch: int, used: tuple[EpochProgress, ...] = (), resumes: int | None = None) -> None:
        self.epoch, self.used, self.resumes = epoch, used, resumes
        self.has_started = self.is_copy = self.is_over = False
        self.began: float | None = None  # time of `time.perf_counter`
        self.outer: Run | None = None  # the older pass that was running when this pass began

    @property
    def position(self) -> int:
        """Number of items yielded with the current number of ranks."""
        return self.used[-1].num_items if self.used else 0

    @position.setter
    def position(self, number: int) -> None:
        self.used = (*self.used[:-1], self.used[-1]._replace(num_items=number))

    def used_before(self, part: Shard) -> tuple[EpochProgress, ...]:
        """Return the parts that were used with other numbers of ranks."""
        return self.used[:-1] if self.used and self.used[-1][:2] == (part.world_size, part.group) else self.used

    def go_on(self, part: Shard) -> None:
        """Start counting for the current number of ranks, which may differ from the number in a loaded state."""
        if self.used_before(part) == self.used:
            self.used = (*self.used, EpochProgress(part.world_size, part.group, 0))

"""How far a run has come: what some ranks, and others after them, have used of an epoch's batches."""

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from popgeo.loader.shard import Shard
from popgeo.packing import Packs


class Used(NamedTuple):
    """How much of an epoch some ranks have used together."""

    world_size: int
    group: int
    num_items: int
    """Items of each rank."""

    @property
    def num_packs(self) -> int:
        """Batches of all of them."""
        return self.world_size * self.group * self.num_items


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochPlan:
    """The batches of one epoch.

    Args:
        key: Seed and epoch.
        shard: Which of the batches this process loads.
        used: What other numbers of ranks had used of the epoch before it went on with this one.
        whole: The batches of all ranks, before any of them is split.
        left: Those that come with this number of ranks.
        packs: The batches of this rank.
    """

    key: tuple[int, int]
    shard: Shard
    used: tuple[Used, ...]
    whole: Packs
    left: Packs
    packs: Packs

    @property
    def num_items(self) -> int:
        """Items of this rank."""
        return len(self.packs) // self.shard.group

    @cached_property
    def fingerprint(self) -> int:
        """A number that all ranks have in common, and that another order or packing changes."""
        whole = self.whole
        return zlib.crc32(np.ascontiguousarray(whole.indices).data, zlib.crc32(np.ascontiguousarray(whole.ptr).data))


class Run:
    """One pass over the items of an epoch, and how many of them it has given.

    Args:
        epoch: Its number.
        used: What has been used of the epoch, last with the number of ranks that it has now.
        resumes: The fingerprint of the batches among which that was.
    """

    __slots__ = ("epoch", "has_started", "is_copy", "resumes", "used")

    def __init__(self, epoch: int, used: tuple[Used, ...] = (), resumes: int | None = None) -> None:
        self.epoch, self.used, self.resumes = epoch, used, resumes
        self.has_started = self.is_copy = False

    @property
    def position(self) -> int:
        """Items given with the number of ranks that there is now."""
        return self.used[-1].num_items if self.used else 0

    @position.setter
    def position(self, number: int) -> None:
        self.used = (*self.used[:-1], self.used[-1]._replace(num_items=number))

    def used_before(self, part: Shard) -> tuple[Used, ...]:
        """What other ranks than those of now had used."""
        return self.used[:-1] if self.used and self.used[-1][:2] == (part.world_size, part.group) else self.used

    def go_on(self, part: Shard) -> None:
        """Counts for the ranks that there are now, perhaps other than those of the state that was loaded."""
        if self.used_before(part) == self.used:
            self.used = (*self.used, Used(part.world_size, part.group, 0))

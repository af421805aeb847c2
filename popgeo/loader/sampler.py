"""The one epoch: sizes in, indices out. Which batch holds what, for which rank, and how far a run has come.

A `Packer` knows what batches are made of and puts indices together. An `EpochSampler` knows all else: the order of an
epoch, which follows from the seed and its number alone, the shard of this process, and where a run that was broken off
goes on. Neither knows how a batch is made of its indices; that is what a loader adds.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from popgeo.loader.epoch_choices import EpochChoices
from popgeo.loader.shard import Shard, num_mini_batches, shard, shard_of_this_process
from popgeo.packing import Packs
from popgeo.random_numbers import generator_of
from popgeo.sampling.compressed_graph import check_range


class Packer(ABC):
    """Puts the indices of an epoch together into batches."""

    num_items: int
    """How many graphs, or what else indices count, there are."""

    def order(self, shuffle: bool, generator: torch.Generator) -> np.ndarray:
        """Every index once, in the order of an epoch. int64 [num_items]"""
        if not shuffle:
            return np.arange(self.num_items)
        return torch.randperm(self.num_items, generator=generator).numpy()

    @abstractmethod
    def pack(self, order: np.ndarray, generator: torch.Generator) -> Packs:
        """Batches of some indices, in the order given, with what has to be drawn for it.

        Raises:
            ValueError: something fits no batch.
        """

    def check(self, packs: Packs) -> None:
        """Refuses batches, perhaps chosen by a user, that cannot be made."""
        return


@dataclass(frozen=True, kw_only=True)
class OrderPacker(Packer):
    """Puts indices together by a function of their order alone.

    Args:
        num_items: How many there are.
        together: Puts some of them together, in the order given.
    """

    num_items: int
    together: Callable[[np.ndarray], Packs]

    def pack(self, order: np.ndarray, generator: torch.Generator) -> Packs:
        """Batches of some indices, in the order given."""
        return self.together(order)


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochPlan:
    """The batches of one epoch.

    Args:
        key: Seed and epoch.
        shard: Which of the batches this process loads.
        whole: The batches of all ranks, before any of them is split.
        packs: The batches of this rank.
    """

    key: tuple[int, int]
    shard: Shard
    whole: Packs
    packs: Packs

    @property
    def num_items(self) -> int:
        """Items of this rank."""
        return len(self.packs) // self.shard.group

    @cached_property
    def fingerprint(self) -> int:
        """A number that all ranks have in common, and that another order, packing or number of ranks changes."""
        counts = [self.shard.world_size, self.shard.group, len(self.whole)]
        whole = np.concatenate([counts, self.whole.ptr, self.whole.indices], dtype=np.int64)
        return zlib.crc32(whole.tobytes())


class Run:
    """One pass over the items of an epoch, and how many of them it has given."""

    __slots__ = ("epoch", "has_started", "is_copy", "position", "resumes")

    def __init__(self, epoch: int, position: int = 0, resumes: int | None = None) -> None:
        self.epoch, self.position, self.resumes = epoch, position, resumes
        self.has_started = self.is_copy = False


class EpochSampler:
    """The epochs of a loader, one after another.

    An epoch begins with its first item: an iterator from which nothing is drawn changes nothing.

    Args:
        packer: Puts indices together into batches.
        choices: Order, seed, shard, and how many batches one item holds.
        unit: What indices count, in a state and in errors.

    Raises:
        ValueError: `choices.options` asks for replicas that `world_size` ranks cannot share.
    """

    def __init__(self, packer: Packer, choices: EpochChoices, unit: str = "graphs") -> None:
        self.packer, self.choices, self.seed, self._unit = packer, choices, choices.seed, unit
        num_mini_batches(choices.options, choices.world_size or 1)
        self._run = Run(0)
        self._plan: EpochPlan | None = None
        self._behind, self._is_loaded = 0, False

    @property
    def shard(self) -> Shard:
        """What this process loads; looked up for each epoch, since processes may form a group after the loader is made.

        Raises:
            ValueError: see `shard_of_this_process`; or the order is a sampler's, which may differ in each process.
        """
        rank, world_size, options = self.choices.rank, self.choices.world_size, self.choices.options
        if rank is None or world_size is None:
            rank, world_size = shard_of_this_process()
            if world_size > 1 and self.choices.has_own_order:
                raise ValueError(
                    f"There are {world_size} processes, and a sampler or batch_sampler draws in each by itself. Leave "
                    f"it out; or pass rank=0, world_size=1 where it already chooses the graphs of its process, as "
                    f"DistributedSampler does; or the process's rank= and world_size= where it draws the same in each."
                )
        return Shard(rank=rank, world_size=world_size, group=num_mini_batches(options, world_size))

    @property
    def epoch(self) -> int:
        """The number of the epoch that is running or comes next."""
        return self._run.epoch

    def whole(self, seed: int, epoch: int) -> Packs:
        """The batches of one epoch, those of all ranks.

        Raises:
            ValueError: a sampler gives what there is not, or something fits no batch.
        """
        choices = self.choices
        tell = getattr(choices.sampler if choices.batch_sampler is None else choices.batch_sampler, "set_epoch", None)
        if tell is not None:
            tell(epoch)
        if choices.batch_sampler is not None:
            packs = Packs.from_lists(choices.batch_sampler)
        else:
            # Without shuffle what is drawn at random is drawn alike in every epoch.
            generator = generator_of(seed, epoch if choices.shuffle or choices.sampler is not None else 0)
            packs = self.packer.pack(self._order(generator), generator)
        self.packer.check(packs)
        return packs

    def _order(self, generator: torch.Generator) -> np.ndarray:
        if self.choices.sampler is None:
            return self.packer.order(self.choices.shuffle, generator)
        order = np.fromiter(self.choices.sampler, dtype=np.int64)
        check_range("sampler", torch.from_numpy(order), self.packer.num_items)
        return order

    def plan(self, epoch: int | None = None) -> EpochPlan:
        """The batches of an epoch, by default of the one that is running or comes next; made when first asked for."""
        key, part = (self.seed, self.epoch if epoch is None else epoch), self.shard
        if self._plan is None or (self._plan.key, self._plan.shard) != (key, part):
            whole = self.whole(*key)
            mine = shard(whole, part.rank, part.world_size, part.group, self.choices.drop_last)
            self._plan = EpochPlan(key=key, shard=part, whole=whole, packs=mine)
        return self._plan

    def begin(self, is_copy: bool = False) -> tuple[Run, EpochPlan]:
        """Starts the next pass, where the last state that was loaded stopped.

        Args:
            is_copy: The batches are drawn for another loader, which skips what was used by itself.

        Raises:
            ValueError: the state was taken among other batches than these, or a copy would use some of them twice.
        """
        at = self._run
        plan = self.plan(at.epoch + at.has_started)
        if at.position and not at.has_started:
            if is_copy:
                raise ValueError(
                    f"This loader goes on at item {at.position} of epoch {at.epoch} by itself. Iterate over it; do not "
                    f"skip batches (accelerate's skip_first_batches) or copy it to another DataLoader."
                )
            if at.resumes not in (None, plan.fingerprint):
                raise ValueError(
                    f"The state was taken after {at.position} items of epoch {at.epoch}, which had other batches. Use "
                    f"the same dataset, sizes, strategy, shuffle, sampler and number of processes (now "
                    f"{plan.shard.world_size}), or begin the next epoch with set_epoch({at.epoch + 1})."
                )
        self._run = run = Run(plan.key[1], 0 if at.has_started else at.position)
        run.has_started, run.is_copy, self._is_loaded = True, is_copy, False
        return run, plan

    def end(self, run: Run) -> None:
        """Notes that a pass has come to its end; nothing if another has begun since."""
        if self._run is run:
            self._run = Run(run.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that comes next; a state that was loaded for the same epoch keeps its position."""
        self._behind, self._is_loaded = 0, False
        self._go_to(epoch)

    def follow(self, epoch: int) -> None:
        """The same for a trainer that counts by itself, perhaps from 0 again after a restart."""
        if self._is_loaded and epoch < self.epoch:
            self._behind = self.epoch - epoch
        self._is_loaded = False
        self._go_to(epoch + self._behind)

    def _go_to(self, epoch: int) -> None:
        if self._run.has_started or self._run.epoch != epoch:
            self._run = Run(epoch)

    def state_dict(self) -> dict[str, int]:
        """After how many items of which epoch the current pass stands; the same for all ranks.

        Raises:
            ValueError: a copy draws the batches, which may be ahead of what it has given.
        """
        run = self._run
        if run.is_copy:
            raise ValueError(
                "Another DataLoader draws the batches of this one, so how many have been used is not known here. "
                "Iterate over this loader itself."
            )
        epoch, position, known = run.epoch, run.position, run.resumes
        if run.has_started and position:
            plan = self.plan()
            known = plan.fingerprint
            if position == plan.num_items:
                epoch, position = epoch + 1, 0
        state = {"epoch": epoch, "position": position, "seed": self.seed, f"num_{self._unit}": self.packer.num_items}
        return {**state, "batches": known} if position and known is not None else state

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Makes the next pass go on where `state_dict` was taken, with the random seed of that run.

        Raises:
            ValueError: the state is of another loader, or of one with another number of graphs or of seed nodes.
        """
        found = state.get(f"num_{self._unit}", 0)
        if found != self.packer.num_items:
            raise ValueError(
                f"The state is of a loader of {found} {self._unit}, this one has {self.packer.num_items}. "
                f"Load it into a loader of the same dataset."
            )
        self.seed = state["seed"]
        self._run = Run(state["epoch"], state["position"], state.get("batches"))
        self._behind, self._is_loaded = 0, True

"""The one epoch: sizes in, indices out. Which batch holds what, for which rank, and how far a run has come.

A `Packer` knows what batches are made of and puts indices together. An `EpochSampler` knows all else: the order of an
epoch, which follows from the seed and its number alone, the shard of this process, and where a run that was broken off
continues. Neither knows how a batch is made of its indices; that is what a loader adds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from popgeo.loader.balance import GraphWork, balanced
from popgeo.loader.epoch_choices import EpochChoices
from popgeo.loader.epoch_seed import EpochSeed
from popgeo.loader.run import EpochPlan, Run, used_of
from popgeo.loader.shard import Shard, in_whole_steps, num_mini_batches, shard_of_this_process
from popgeo.packing.packs import Packs, whole_numbers
from popgeo.random_numbers import generator_of
from popgeo.sampling.compressed_graph import check_range


class Packer(ABC):
    """Puts the indices of an epoch together into batches.

    Attributes:
        num_items: How many graphs, or what else indices count, there are.
    """

    num_items: int

    def order(self, shuffle: bool, generator: torch.Generator) -> np.ndarray | None:
        """Every index once, in the order of an epoch; None for 0, 1, 2, ... int64 [num_items]"""
        return torch.randperm(self.num_items, generator=generator).numpy() if shuffle else None

    @abstractmethod
    def pack(self, order: np.ndarray | None, generator: torch.Generator) -> Packs:
        """Batches of some indices, in the order given, with what has to be drawn for it.

        Args:
            order: The indices; None for all, in the order that they have. int64 [number of indices]
            generator: Source of randomness.

        Raises:
            ValueError: something fits no batch.
        """

    def check(self, packs: Packs) -> None:
        """Refuses batches, perhaps chosen by a user, that cannot be made."""
        return

    def check_unchanged(self) -> None:
        """Refuse to begin an epoch if the things that batches are made of have changed since they were read."""
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

    def pack(self, order: np.ndarray | None, generator: torch.Generator) -> Packs:
        """Batches of some indices, in the order given."""
        return self.together(np.arange(self.num_items) if order is None else order)


class EpochSampler:
    """The epochs of a loader, one after another.

    An epoch begins with its first item: an iterator from which nothing is drawn changes nothing. Without a seed the
    first epoch draws one from torch's generator. Until then a plan is that of an epoch that would begin now.

    Args:
        packer: Puts indices together into batches.
        choices: Order, seed, shard, and how many batches one item holds.
        unit: What indices count, in a state and in errors.
        work: What each of them costs, for steps that are equally long on all ranks; see `balanced`. None leaves the
            batches in the packer's order.

    Attributes:
        drawn_seed: With the number of an epoch it decides every order and every draw.
        num_alike: How many processes need one seed; 0 for the number of shards.

    Raises:
        ValueError: `choices.options` asks for replicas that `world_size` ranks cannot share.
    """

    def __init__(
        self, packer: Packer, choices: EpochChoices, unit: str = "graphs", work: GraphWork | None = None
    ) -> None:
        self.packer, self.choices, self._unit, self.work = packer, choices, unit, work
        self.drawn_seed, self.num_alike = EpochSeed(choices.seed), 0
        num_mini_batches(choices.options, choices.world_size or 1)
        self._run = Run(0)
        self._drawn: Run | None = None  # a pass that was drawn to its end, perhaps ahead of its use
        self._given: Run | None = None  # of several passes at a time, the one whose place a state tells
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
                    f"it out; or pass rank=0, world_size=1 if it already chooses the graphs of its process, as "
                    f"DistributedSampler does; or the process's rank= and world_size= if it draws the same in each."
                )
        return Shard(rank=rank, world_size=world_size, group=num_mini_batches(options, world_size))

    @property
    def seed(self) -> int | None:
        """With the number of an epoch it decides every order and every draw; None before the first epoch draws it."""
        return self.drawn_seed.number

    @property
    def epoch(self) -> int:
        """The number of the epoch that is running or comes next."""
        return self._run.epoch

    def whole(self, seed: int, epoch: int) -> Packs:
        """The batches of one epoch, of all ranks.

        Raises:
            ValueError: a sampler gives what there is not, or something fits no batch.
        """
        choices = self.choices
        tell = getattr(choices.sampler if choices.batch_sampler is None else choices.batch_sampler, "set_epoch", None)
        if tell is not None:
            tell(epoch)
        if choices.batch_sampler is not None:
            packs = Packs.from_lists(choices.batch_sampler)
            check_range("batch_sampler", torch.from_numpy(packs.indices), self.packer.num_items)
        else:
            generator = generator_of(seed, self._drawn_as(epoch))
            packs = self.packer.pack(self._order(generator), generator)
        self.packer.check(packs)
        return packs

    def _drawn_as(self, epoch: int) -> int:
        """The epoch that names what is drawn: without shuffle it is drawn alike in every epoch."""
        return epoch if self.choices.shuffle or self.choices.sampler is not None else 0

    def _order(self, generator: torch.Generator) -> np.ndarray | None:
        if self.choices.sampler is None:
            return self.packer.order(self.choices.shuffle, generator)
        order = whole_numbers([*self.choices.sampler], self._unit.capitalize())
        check_range("sampler", torch.from_numpy(order), self.packer.num_items)
        return order

    def plan(self, epoch: int | None = None, run: Run | None = None) -> EpochPlan:
        """The batches of an epoch, by default of the one that is running or comes next; made when first asked for."""
        run = run or self._run
        key, part = (self.drawn_seed.now(), run.epoch if epoch is None else epoch), self.shard
        used = run.used_before(part) if key[1] == run.epoch else ()
        plan = self._plan
        if plan is None or (plan.key, plan.shard, plan.used) != (key, part, used):
            left = whole = self.whole(*key)
            for number, ranks in enumerate(used):
                left = self._in_steps(left, ranks.world_size * ranks.group, key, number)[ranks.num_packs :]
            left = self._in_steps(left, part.world_size * part.group, key, len(used))
            mine = left if part.world_size == 1 else left[part.rank :: part.world_size]
            plan = self._plan = EpochPlan(key=key, shard=part, used=used, whole=whole, left=left, packs=mine)
        return plan

    def _in_steps(self, packs: Packs, together: int, key: tuple[int, int], number: int) -> Packs:
        """As many batches as make whole steps, in an order in which steps are equally long if costs are given."""
        drops = self.choices.drop_last
        if self.work is None or together == 1:
            return in_whole_steps(packs, together, drops)
        return balanced(packs, self.work, together, generator_of(key[0], self._drawn_as(key[1]), number), drops)

    def begin(self, is_copy: bool = False) -> tuple[Run, EpochPlan]:
        """Starts the next pass, where the last state that was loaded stopped.

        Args:
            is_copy: The batches are drawn for another loader, which skips what was used by itself.

        Raises:
            ValueError: the state was taken among other batches than these, or a copy would use some of them twice.
        """
        self.packer.check_unchanged()
        at = self._run
        if not at.used or at.has_started:  # a pass that continues has drawn before
            count = self.num_alike or self.shard.world_size
            self.drawn_seed.draw(None if count == 1 and self.choices.has_own_order else count)
        plan = self.plan(at.epoch + at.has_started)
        if at.used and not at.has_started:
            if is_copy:
                raise ValueError(
                    f"This loader continues at item {at.position} of epoch {at.epoch} by itself. Iterate it; do not "
                    f"skip batches (accelerate's skip_first_batches) or copy it to another DataLoader."
                )
            if at.resumes not in (None, plan.fingerprint):
                raise ValueError(
                    f"The state was taken after {at.position} items of epoch {at.epoch}, which had other batches. Use "
                    f"the same dataset, sizes, strategy, shuffle and sampler, or begin the next epoch with "
                    f"set_epoch({at.epoch + 1})."
                )
        self._run = run = Run(plan.key[1]) if at.has_started else Run(at.epoch, at.used, at.resumes)
        run.go_on(plan.shard)
        run.has_started, run.is_copy, self._is_loaded = True, is_copy, False
        run.beside = None if self._given is None or self._given.is_over else self._given
        return run, plan

    def give(self, run: Run) -> None:
        """Count an item that a pass gives. A state then tells the place of this pass."""
        run.position += 1
        self._given = run

    def end(self, run: Run, is_whole: bool = True) -> None:
        """Note that a pass has come to its end, or was given up before.

        If it ran within an older pass, as a look at one batch or an evaluation does, it leaves no trace: states and
        the next epoch are again those of the older pass. An older pass that gave one item was such a look itself.
        """
        run.is_over, older = True, run.beside
        is_within = self._given is run and older is not None and not older.is_over
        if older is not None and is_within and (older.position > 1 or run.position <= 1):
            self._given = older
            self._run = Run(run.epoch) if self._run is run else self._run
        elif is_whole:
            self._given = None if self._given is run else self._given
            if self._run.is_over:
                self._run, self._drawn = Run(self._run.epoch + 1), run

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that comes next; a state that was loaded for the same epoch keeps its position."""
        self._behind, self._is_loaded = 0, False
        self._go_to(epoch)

    def follow(self, epoch: int) -> None:
        """As `set_epoch`, for a trainer that counts by itself, perhaps from 0 again after a restart."""
        if self._is_loaded and epoch < self.epoch:
            self._behind = self.epoch - epoch
        self._is_loaded = False
        self._go_to(epoch + self._behind)

    def _go_to(self, epoch: int) -> None:
        self._drawn = self._given = None
        if self._run.has_started or self._run.epoch != epoch:
            self._run = Run(epoch)

    def state_dict(self, num_items: int | None = None) -> dict[str, Any]:
        """After how many items of which epoch the current pass stands; the same for all ranks.

        A run of another number of ranks may continue from it: the rest of the epoch is then shared out again.

        Args:
            num_items: How many items of the pass have been used; None means all that were drawn.

        Raises:
            ValueError: a copy draws the batches, which may be ahead of what it has given; or fewer have been drawn.
        """
        now = self._given or self._run
        run = self._drawn if num_items and self._drawn is not None and not self._run.has_started else now
        if num_items is not None and not 0 <= num_items <= run.position:
            raise ValueError(f"{num_items} items cannot have been used: {run.position} of this pass have been drawn.")
        if run.is_copy:
            raise ValueError("Another DataLoader draws batches: their number is not known here. Iterate over this one.")
        at = Run(run.epoch, run.used, run.resumes)
        if num_items is not None and run.used:
            at.position = num_items
        epoch, position, known = at.epoch, at.position, at.resumes
        used = [list(ranks) for ranks in at.used if ranks.num_items]
        if run.has_started and position:
            plan = self.plan(run=run)
            known = plan.fingerprint
            if position == plan.num_items:
                epoch, position, used = epoch + 1, 0, []
        state = {"epoch": epoch, "position": position, "seed": self.seed, f"num_{self._unit}": self.packer.num_items}
        # The same names in every state: what saves and restores by name would leave out others.
        return {**state, "batches": known if used else None, "used": used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next pass continue where `state_dict` was taken, with the random seed of that run.

        Raises:
            ValueError: the state is of a different loader, of a different number of graphs or of seed nodes, or holds
                an impossible number. The loader then stays as it was.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"The state is a {type(state).__name__}, not a mapping. Pass what state_dict() returned.")
        if state.get("position") and "used" not in state:
            raise ValueError(
                f"The state was taken in the middle of epoch {state['epoch']} by an earlier version of popgeo, whose "
                f"batches were others. Begin the next epoch with set_epoch({state['epoch'] + 1})."
            )
        if "epoch" not in state:
            raise ValueError(f"The state has {sorted(state)} and no epoch: no loader has written it. See state_dict().")
        found = state.get(f"num_{self._unit}", 0)
        if found != self.packer.num_items:
            raise ValueError(
                f"The state is of {found} {self._unit}, the loader has {self.packer.num_items}. Load it into a loader "
                f"of the same dataset."
            )
        used = used_of(state, self.packer.num_items)
        self.drawn_seed.number = state["seed"]
        self._run, self._drawn, self._given = Run(state["epoch"], used, state.get("batches")), None, None
        self._behind, self._is_loaded = 0, True

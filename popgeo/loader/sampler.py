"""The epochs of every loader: the indices in each batch of each rank, and the position of a run.

A `Packer` groups the indices of items into batches. An `EpochSampler` decides the order of an epoch from the seed and
the number of the epoch, selects the shard of this process, and stores the position at which an interrupted run
continues. A loader then makes the batches from the indices.
"""

import time
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
from popgeo.loader.tensor_versions import GraphVersions
from popgeo.packing.packs import Packs, whole_numbers
from popgeo.random_numbers import generator_of
from popgeo.sampling.compressed_graph import check_range


class Packer(ABC):
    """A rule that groups the indices of an epoch into batches.

    Attributes:
        num_items: Number of graphs, seeds, events or other items that indices count.
        is_pure: Whether the batches of an epoch depend only on its seed and number, so that they can be known early.
    """

    num_items: int
    is_pure: bool = False

    def order(self, shuffle: bool, generator: torch.Generator) -> np.ndarray | None:
        """Return every index once, in the order of an epoch, int64 [num_items]; None means ascending order."""
        return torch.randperm(self.num_items, generator=generator).numpy() if shuffle else None

    @abstractmethod
    def pack(self, order: np.ndarray | None, generator: torch.Generator) -> Packs:
        """Group some indices into batches.

        Args:
            order: The indices in order; None for all, ascending. int64 [number of indices]
            generator: Source of randomness.

        Raises:
            ValueError: an item fits no batch.
        """

    def check(self, packs: Packs) -> None:
        """Raise if a batch, perhaps of a user's sampler, cannot be made."""
        return

    def check_unchanged(self) -> None:
        """Raise if the dataset has changed since it was read. Called before each epoch."""
        return

    def check_items(self, indices: np.ndarray) -> None:
        """Raise if some items have changed since they were read. Called before their batch is made."""
        return


@dataclass(frozen=True, kw_only=True)
class OrderPacker(Packer):
    """A packer that groups indices by a function of their order.

    Args:
        num_items: Number of items.
        together: Groups some of them, in the given order.
        seen: Values of the graph or of the events when the loader read them. Default: none, and nothing is checked.
    """

    num_items: int
    together: Callable[[np.ndarray], Packs]
    seen: GraphVersions | None = None

    def pack(self, order: np.ndarray | None, generator: torch.Generator) -> Packs:
        """Group some indices into batches, in the given order."""
        return self.together(np.arange(self.num_items) if order is None else order)

    def check_unchanged(self) -> None:
        """Raise if a value was replaced or edited since the loader read it, and no batch would contain the change."""
        if self.seen is not None and (change := self.seen.first_change()) is not None:
            raise ValueError(
                f"The data have changed since the loader read them: {change} was replaced or edited. A batch would "
                "hold what it was before. Make the loader after the change, or copy new features into the old tensor."
            )


class EpochSampler:
    """The epochs of a loader, one after another.

    An epoch begins with its first item, so an iterator that yields no item changes nothing. Without a seed the first
    epoch draws one from torch's generator. Before that, a plan is the plan of an epoch that would begin now.

    Args:
        packer: Groups indices into batches.
        choices: Order, seed, shard, and number of batches in one item.
        unit: Name of the items, in a state and in errors.
        work: Cost of each item, for steps that are equally long on all ranks; see `balanced`. None keeps the packer's
            order.

    Attributes:
        drawn_seed: Seed that decides every order and every draw, with the number of an epoch.
        num_alike: Number of processes that need the same seed; 0 for the number of shards.

    Raises:
        ValueError: `world_size` ranks cannot share the replicas of `choices.options`.
    """

    def __init__(
        self, packer: Packer, choices: EpochChoices, unit: str = "graphs", work: GraphWork | None = None
    ) -> None:
        self.packer, self.choices, self._unit, self.work = packer, choices, unit, work
        self.drawn_seed, self.num_alike = EpochSeed(choices.seed), 0
        num_mini_batches(choices.options, choices.world_size or 1)
        self._run = Run(0)
        self._drawn: Run | None = None  # a pass that was drawn to its end, perhaps before its items were used
        self._given: Run | None = None  # the pass that a state describes, if several run at a time
        self._plans: list[EpochPlan] = []  # at most two: of an epoch, and of the next
        self._behind, self._is_loaded = 0, False

    @property
    def shard(self) -> Shard:
        """Shard of this process, looked up for each epoch, since processes may form a group after the loader is made.

        Raises:
            ValueError: `shard_of_this_process` raises; or a sampler, which may differ in each process, decides the
                order.
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
        """Seed of every order and every draw, together with the epoch's number; None before it is drawn."""
        return self.drawn_seed.number

    @property
    def epoch(self) -> int:
        """Number of the current or next epoch."""
        return self._run.epoch

    def whole(self, seed: int, epoch: int) -> Packs:
        """Return one epoch's batches for all ranks.

        Raises:
            ValueError: a sampler yields an index outside the dataset, or an item fits no batch.
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
        """Return the number that seeds an epoch's random draws: 0 without shuffle, so that all epochs are equal."""
        return epoch if self.choices.shuffle or self.choices.sampler is not None else 0

    def _order(self, generator: torch.Generator) -> np.ndarray | None:
        if self.choices.sampler is None:
            return self.packer.order(self.choices.shuffle, generator)
        order = whole_numbers([*self.choices.sampler], self._unit.capitalize())
        check_range("sampler", torch.from_numpy(order), self.packer.num_items)
        return order

    def plan(self, epoch: int | None = None, run: Run | None = None) -> EpochPlan:
        """Return the plan of an epoch. Default: the current or next epoch."""
        run = run or self._run
        key, part = (self.drawn_seed.now(), run.epoch if epoch is None else epoch), self.shard
        used = run.used_before(part) if key[1] == run.epoch else ()
        known = [plan for plan in self._plans if (plan.key, plan.shard, plan.used) == (key, part, used)]
        if not known:
            left = whole = self.whole(*key)
            for number, ranks in enumerate(used):
                left = self._in_steps(left, ranks.world_size * ranks.group, key, number)[ranks.num_packs :]
            left = self._in_steps(left, part.world_size * part.group, key, len(used))
            mine = left if part.world_size == 1 else left[part.rank :: part.world_size]
            known = [EpochPlan(key=key, shard=part, used=used, whole=whole, left=left, packs=mine)]
            self._plans = [*self._plans[-1:], *known]
        return known[0]

    def _in_steps(self, packs: Packs, together: int, key: tuple[int, int], number: int) -> Packs:
        """Split, drop or reorder batches so that they fill whole steps; if costs are given, balance each step."""
        drops = self.choices.drop_last
        if self.work is None or together == 1:
            return in_whole_steps(packs, together, drops)
        return balanced(packs, self.work, together, generator_of(key[0], self._drawn_as(key[1]), number), drops)

    def begin(self, is_copy: bool = False) -> tuple[Run, EpochPlan]:
        """Start the next pass, at the position of a state that was loaded.

        Args:
            is_copy: Whether another loader draws these batches. It skips used batches by itself.

        Raises:
            ValueError: the epoch had different batches when the state was taken, or a copy would use some batches
                twice.
        """
        began = time.perf_counter()
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
        run.began, run.has_started, run.is_copy, self._is_loaded = began, True, is_copy, False
        run.outer = None if self._given is None or self._given.is_over else self._given
        return run, plan

    def give(self, run: Run) -> None:
        """Count an item that a pass yields. The next state describes this pass."""
        run.position += 1
        self._given = run

    def end(self, run: Run, is_whole: bool = True) -> None:
        """Record that a pass has ended or was abandoned.

        A pass may run within an older pass, for example to inspect one batch or to evaluate. After it, states and the
        next epoch are again those of the older pass. An older pass that yielded only one item counts as an inspection,
        and is not continued.

        Args:
            run: The pass.
            is_whole: Whether the pass yielded all of its items.
        """
        run.is_over, older = True, run.outer
        is_within = self._given is run and older is not None and not older.is_over
        if older is not None and is_within and (older.position > 1 or run.position <= 1):
            self._given = older
            self._run = Run(run.epoch) if self._run is run else self._run
        elif is_whole:
            self._given = None if self._given is run else self._given
            if self._run.is_over:
                self._run, self._drawn = Run(self._run.epoch + 1), run

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch. A state that was loaded for the same epoch keeps its position."""
        self._behind, self._is_loaded = 0, False
        self._go_to(epoch)

    def follow(self, epoch: int) -> None:
        """Set the next epoch for a trainer that may count from 0 again after a restart."""
        if self._is_loaded and epoch < self.epoch:
            self._behind = self.epoch - epoch
        self._is_loaded = False
        self._go_to(epoch + self._behind)

    def _go_to(self, epoch: int) -> None:
        self._drawn = self._given = None
        if self._run.has_started or self._run.epoch != epoch:
            self._run = Run(epoch)

    def state_dict(self, num_items: int | None = None) -> dict[str, Any]:
        """Return the position of the current pass: epoch and number of items. It is the same for all ranks.

        A run with a different number of ranks can continue from it. The rest of the epoch is then distributed again.

        Args:
            num_items: Number of items of the pass that have been used. Default: all that were drawn.

        Raises:
            ValueError: another loader draws the batches, so the number in use is unknown; or fewer items than
                `num_items` were drawn.
        """
        now = self._given or self._run
        run = self._drawn if num_items and self._drawn is not None and not self._run.has_started else now
        if num_items is not None and not 0 <= num_items <= run.position:
            raise ValueError(f"{num_items} items cannot have been used: {run.position} of this pass have been drawn.")
        if run.is_copy:
            raise ValueError(
                "Another DataLoader draws batches: their number is not known here. Iterate over this loader."
            )
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
        # Every state has the same names: a checkpointer that restores by name would ignore additional ones.
        return {**state, "batches": known if used else None, "used": used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next pass continue at the position of a state, with the random seed of that run.

        Raises:
            ValueError: the state is from a loader with different items, or contains an impossible number. The loader
                then stays unchanged.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"The state is a {type(state).__name__}, not a mapping. Pass what state_dict() returned.")
        if state.get("position") and "used" not in state:
            raise ValueError(
                f"The state was taken in the middle of epoch {state['epoch']} by an earlier version of popgeo, whose "
                f"batches differ. Begin the next epoch with set_epoch({state['epoch'] + 1})."
            )
        if "epoch" not in state:
            raise ValueError(
                f"The state has {sorted(state)} and no epoch. Pass the result of state_dict() of a loader."
            )
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

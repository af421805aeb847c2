"""All state of a loader: which epoch runs, what its batches are, how far it has come."""

from typing import Any, Protocol

from popgeo.loader.arguments import num_mini_batches
from popgeo.loader.epoch import EpochPlan
from popgeo.loader.shard import Shard, shard_of_this_process


class Packer(Protocol):
    """Says what each batch of an epoch holds."""

    @property
    def num_items(self) -> int:
        """How many graphs, or what else packs hold, there are."""

    @property
    def has_own_order(self) -> bool:
        """Whether a sampler decides the order, rather than seed and epoch."""

    def pack(self, seed: int, epoch: int, part: Shard) -> EpochPlan:
        """The batches of one epoch, and those of one rank."""


class Run:
    """One pass over the items of an epoch, and how many of them it has given."""

    __slots__ = ("epoch", "has_started", "is_copy", "position", "resumes")

    def __init__(self, epoch: int, position: int = 0, resumes: int | None = None) -> None:
        self.epoch, self.position, self.resumes = epoch, position, resumes
        self.has_started = self.is_copy = False


class Epochs:
    """The epochs of a loader, one after another.

    An epoch begins with its first item: an iterator from which nothing is drawn changes nothing.

    Args:
        packer: Makes the batches of an epoch.
        seed: With the number of the epoch it decides every order.
        rank: Which shard; None takes that of this process, anew for each epoch, since a group of processes may form
            after the loader is made.
        world_size: Of how many; None like `rank`.
        options: How many batches one item holds.
        unit: What batches are made of, in a state and in errors.

    Raises:
        ValueError: `options` asks for replicas that `world_size` ranks cannot share.
    """

    def __init__(
        self,
        packer: Packer,
        seed: int,
        rank: int | None,
        world_size: int | None,
        options: Any = None,
        unit: str = "graphs",
    ) -> None:
        self.packer, self.seed, self.options, self._unit = packer, seed, options, unit
        self._chosen = None if rank is None or world_size is None else (rank, world_size)
        num_mini_batches(options, 1 if self._chosen is None else self._chosen[1])
        self._run = Run(0)
        self._plan: EpochPlan | None = None
        self._behind, self._is_loaded = 0, False

    @property
    def shard(self) -> Shard:
        """What this process loads.

        Raises:
            ValueError: see `shard_of_this_process`; or the order is a sampler's, which may differ in each process.
        """
        rank, world_size = self._chosen or shard_of_this_process()
        if world_size > 1 and self._chosen is None and self.packer.has_own_order:
            raise ValueError(
                f"There are {world_size} processes, and a sampler or batch_sampler draws in each by itself. Leave it "
                f"out; or pass rank=0, world_size=1 where it already chooses the graphs of its process, as "
                f"DistributedSampler does; or the process's rank= and world_size= where it draws the same in each."
            )
        return Shard(rank=rank, world_size=world_size, group=num_mini_batches(self.options, world_size))

    @property
    def epoch(self) -> int:
        """The number of the epoch that is running or comes next."""
        return self._run.epoch

    def plan(self, epoch: int | None = None) -> EpochPlan:
        """The batches of an epoch, by default of the one that is running or comes next; made when first asked for."""
        key, shard = (self.seed, self.epoch if epoch is None else epoch), self.shard
        if self._plan is None or (self._plan.key, self._plan.shard) != (key, shard):
            self._plan = self.packer.pack(*key, shard)
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
        """Makes the next pass go on where `state_dict` was taken.

        Raises:
            ValueError: the state is of another loader, or of one with another number of graphs or seeds.
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

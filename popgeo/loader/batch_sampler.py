"""A batch sampler for any loader: sizes of graphs in, the indices of each batch out.

It is the epoch of `sampler.py` alone, without a loader around it: for users who keep their loader, a dataset and a
collate function, and needs to know only which graphs go together.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.trim import OverSizeStrategy
from popgeo.did_you_mean import names_arguments
from popgeo.loader.balance import GraphWork
from popgeo.loader.epoch_choices import EpochChoices
from popgeo.loader.given_sizes import Sizes, SizesPacker, columns_of, side_by_side
from popgeo.loader.run import EpochPlan, EpochProgress, Run
from popgeo.loader.sampler import EpochSampler
from popgeo.loader.shard import Shard
from popgeo.loader.strategy import FixedSizeStrategy, Packing, member, strategy_of
from popgeo.loader.trainers import AskedForAgain, MostGraphs


@names_arguments
class FixedSizeBatchSampler(EpochSampler, Sampler[list[int]], metaclass=AskedForAgain):
    """Says which graphs go together, so that every batch stays within a budget of nodes and one of edges, and fills it.

    It is a `batch_sampler` for the `DataLoader` of torch and of PyG, and for trainers: Lightning, accelerate,
    torchdata's `StatefulDataLoader`, and whatever takes one by name. Each pass over it is an epoch with an order of its
    own; all ranks get equally many batches; every graph of the epoch comes exactly once.

    Args:
        num_nodes: Nodes (atoms) of each graph; or a dataset, whose graphs are measured. None to leave them out.
        num_edges: Edges of each graph; None to leave them out.
        fixed_size_options: What a batch holds, padding included, as a loader of such batches would have it: the graphs
            of a batch use at most `num_nodes - 1` nodes, `num_edges` edges, and are `num_graphs - 1` at most.
        fixed_size_strategy: How graphs are put together: `"Window"` (full and random), `"StreamPack"` (in order),
            `"Optimal"` (few graphs a batch), or a function with the signature of those in `popgeo.packing`.
        over_size_strategy: What happens to a graph above the budget: `"Error"`, `"Skip"` (counted in `num_skipped`), or
            `"Alone"`, a batch for itself.
        budgets: Any further ones, by name: sizes of each graph, and their limit in a batch.
        cost: What a graph costs in time: `"nodes"`, `"edges"` or the name of a budget, numbers [num_graphs], or a
            function of the table of sizes, int64 [num_graphs, num_dimensions]. Batches that ranks work on at the same
            time then cost nearly the same. None leaves the order as it is drawn.
        shuffle: Whether each epoch has an order of its own, given by `seed` and the number of the epoch.
        seed: With the number of the epoch it decides every order. None draws it from torch's generator when the first
            epoch begins; processes of a group agree on the first one's.
        rank: Which shard of the batches to give; by default that of this process in `torch.distributed`.
        world_size: Number of shards.
        drop_last: Drops the batches that are too many for equal shards; otherwise some are split in two.
        dataset: What to measure, if it is given by this name, as fairchem and metatrain do; atoms are then counted
            by `get_metadata("natoms", ...)` or `get_all_atom_counts()`, if there is such a method.
        num_replicas: Another name of `world_size`.

    Raises:
        ValueError: sizes are negative, not whole or of different lengths; a graph is above the budget; there are more
            ranks than graphs.

    Example:
        >>> options = FixedSizeOptions(num_nodes=9, num_edges=20, num_graphs=4)
        >>> sampler = FixedSizeBatchSampler([3, 5, 4, 2], [6, 9, 8, 2], fixed_size_options=options, seed=0)
        >>> [sum((3, 5, 4, 2)[i] for i in batch) for batch in sampler]
        [8, 6]
        >>> len(sampler), sampler
        (2, FixedSizeBatchSampler(4 graphs -> 2 batches; nodes 87.5 %, edges 62.5 % full))
    """

    packer: SizesPacker

    def __init__(
        self,
        num_nodes: Sizes = None,
        num_edges: Sizes = None,
        *,
        fixed_size_options: FixedSizeOptions | None = None,
        fixed_size_strategy: FixedSizeStrategy | Packing | str = FixedSizeStrategy.Window,
        over_size_strategy: OverSizeStrategy | str = OverSizeStrategy.Error,
        budgets: Mapping[str, tuple[Sizes, int]] | None = None,
        cost: Sizes | str | Callable[[np.ndarray], np.ndarray] | None = None,
        shuffle: bool = True,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        dataset: Any = None,
        num_replicas: int | None = None,
    ) -> None:
        columns = columns_of(num_nodes, num_edges, dataset, fixed_size_options, budgets or {})
        packer = SizesPacker(
            names=tuple(columns),
            sizes=side_by_side({name: sizes for name, (sizes, _) in columns.items()}),
            limits=tuple(limit for _, limit in columns.values()),
            num_graphs=None if fixed_size_options is None else fixed_size_options.num_graphs - 1,
            strategy=strategy_of(fixed_size_strategy),
            over_size_strategy=member(OverSizeStrategy, over_size_strategy),
        )
        if None not in (world_size, num_replicas) and world_size != num_replicas:
            raise ValueError(f"world_size is {world_size}, num_replicas {num_replicas}; they mean the same: pass one.")
        world_size = num_replicas if world_size is None else world_size
        choices = EpochChoices(shuffle=shuffle, seed=seed, rank=rank, world_size=world_size, drop_last=drop_last)
        choices = choices.seeded_if(draws=False)
        work = None if cost is None else GraphWork(costs=_costs(cost, packer), sizes=packer.sizes, budget=packer.budget)
        super().__init__(packer, choices, work=work)
        self._is_dealt_out = False

    @property
    def shard(self) -> Shard:
        """What this process takes; everything where accelerate deals the batches out."""
        if self._is_dealt_out:
            return Shard(group=sys.modules["accelerate"].state.PartialState().num_processes)
        return super().shard

    @property
    def batch_size(self) -> "MostGraphs | None":
        """The most graphs of a batch; None in a process with an `Accelerator`, to which None means that batches differ.

        Accelerate asks when it is about to deal the batches of one process out to all of them. They are then given to
        it whole, in an order that it deals as they would have been shared out here.
        """
        accelerate = sys.modules.get("accelerate.state")
        if accelerate is not None and accelerate.is_initialized():
            self._is_dealt_out = True
            return None
        most = MostGraphs(self.packer.num_graphs or self.packer.num_items)
        most.sampler = self
        return most

    @property
    def drop_last(self) -> bool:
        """Whether batches that are too many for equal shards are dropped."""
        return self.choices.drop_last and not self._is_dealt_out

    @property
    def num_skipped(self) -> int:
        """Graphs that `OverSizeStrategy.Skip` leaves out."""
        return len(self.plan().whole.skipped)

    def __len__(self) -> int:
        return len(self._checked_plan().packs)

    def __iter__(self) -> Iterator[list[int]]:
        self._checked_plan()
        self.num_alike = self.shard.group if self._is_dealt_out else 0  # accelerate deals one order out to all
        run, plan = self.begin()
        group = plan.shard.group
        for number in range(run.position * group, len(plan.packs)):
            run.position = (number + 1) // group
            yield plan.packs[number].tolist()
        self.end(run)

    def _checked_plan(self) -> EpochPlan:
        plan = self.plan()
        if len(plan.left) and not np.diff(plan.left.ptr).all():
            raise ValueError(
                f"There are {plan.left.num_graphs} graphs for {plan.shard.world_size * plan.shard.group} ranks, so "
                f"some would have an empty batch. Use fewer ranks, or pass drop_last=True."
            )
        return plan

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass, as trainers do; without it passes count from 0.

        A trainer that counts from 0 again after a state was loaded is followed from the epoch of that state on.
        """
        self.follow(epoch)

    def set_epoch_and_start_iteration(self, epoch: int, start_iter: int) -> None:
        """Chooses the epoch and how many of its batches are left out, as fairchem does to resume.

        Raises:
            ValueError: batches are left out, and no seed says which.
        """
        if start_iter and self.seed is None:
            raise ValueError(
                f"{start_iter} batches of epoch {epoch} are left out, but the seed that decides them is not known. "
                "Pass seed= as in the run before, or load its state_dict()."
            )
        part = self.shard
        self._run = Run(epoch, (EpochProgress(part.world_size, part.group, start_iter),) if start_iter else ())

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """Where the pass stands, for `load_state_dict`, also of a run with another number of ranks.

        Args:
            num_batches: How many batches of the pass have been used. None means all that were drawn: workers of a
                `DataLoader` draw ahead of what is used, so pass the number, or use a `StatefulDataLoader`.
        """
        return super().state_dict(num_batches)

    def describe(self) -> str:
        """How full the batches of the coming epoch are, and how evenly the ranks share the work of each step."""
        plan, packer = self.plan(), self.packer
        full = packer.full(plan.left)
        lines = [f"{plan.left.num_graphs:,} graphs -> {len(plan.left):,} batches, {len(plan.packs):,} a rank"]
        for name, limit, share in zip(packer.names, packer.limits, full.T, strict=True):
            lines.append(f"{name}: {share.mean():.2%} of {limit:,} used, {share.min(initial=1):.2%} at least")
        if len(plan.whole.skipped):
            lines.append(f"skipped: {len(plan.whole.skipped):,} graphs above the budget")
        world_size = plan.shard.world_size
        if world_size > 1 and len(plan.left):
            by_nodes = GraphWork(costs=packer.sizes[:, 0], sizes=packer.sizes, budget=packer.budget)
            slowest = (self.work or by_nodes).slowest(plan.left, world_size)
            lines.append(
                f"{packer.names[0] if self.work is None else 'cost'} of the slowest of {world_size} ranks: "
                f"{slowest.mean():.2%} above the mean of its step, {slowest.max():.2%} at most"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        try:
            whole, packer = self.plan().whole, self.packer
        except ValueError as error:
            return f"{type(self).__name__}({self.packer.num_items:,} graphs; no batches: {error})"
        full = zip(packer.names, packer.full(whole).mean(axis=0), strict=True) if len(whole) else ()
        shares = ", ".join(f"{name} {share:.1%}".replace("%", " %") for name, share in full)
        filled = f"{shares} full{self.drawn_seed}"
        return f"{type(self).__name__}({whole.num_graphs:,} graphs -> {len(whole):,} batches; {filled})"


def _costs(cost: Any, packer: SizesPacker) -> np.ndarray:
    """What each graph costs. float64 [num_graphs]"""
    if isinstance(cost, str):
        if cost not in packer.names:
            raise ValueError(f"cost is {cost!r}; pass one of {list(packer.names)}, numbers, or a function.")
        cost = packer.sizes[:, packer.names.index(cost)]
    elif callable(cost):
        cost = cost(packer.sizes.astype(np.int64))
    costs = np.asarray(cost, np.float64)
    if costs.shape != (packer.num_items,) or not np.isfinite(costs).all() or (costs < 0).any():
        raise ValueError(f"Costs have the shape {costs.shape}; give {packer.num_items} finite numbers of 0 or more.")
    return costs

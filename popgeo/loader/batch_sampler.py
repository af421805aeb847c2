"""A batch sampler for any `DataLoader`, which computes the indices of each batch from the sizes of graphs.

Use it to keep your own loader and collate function.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils.data import Sampler
from typing_extensions import Unpack

from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.trim import OverSizeStrategy
from popgeo.did_you_mean import names_arguments
from popgeo.loader.balance import GraphWork
from popgeo.loader.epoch_choices import EpochChoices, ShardArguments
from popgeo.loader.given_sizes import Sizes, SizesPacker, columns_of, side_by_side
from popgeo.loader.run import EpochPlan, EpochProgress, Run
from popgeo.loader.sampler import EpochSampler
from popgeo.loader.shard import Shard
from popgeo.loader.strategy import FixedSizeStrategy, Packing, member, strategy_of
from popgeo.plain_surroundings import plain_surroundings


@names_arguments
class FixedSizeBatchSampler(EpochSampler, Sampler[list[int]]):
    """A batch sampler that nearly fills each batch within a budget of nodes and a budget of edges.

    It is a `batch_sampler` for the `DataLoader` of torch and of PyG, for torchdata's `StatefulDataLoader`, accelerate
    and Lightning. Each pass over it is an epoch with a new order. All ranks get equally many batches, and every graph
    of the epoch comes exactly once. With several processes Lightning needs `Trainer(use_distributed_sampler=False)`,
    because the sampler already gives each process its own batches.

    Args:
        num_nodes: Nodes (atoms) of each graph; or a dataset, which is then measured. Default: nodes have no budget.
        num_edges: Edges of each graph. Default: edges have no budget.
        fixed_size_options: Sizes of a batch, padding included: the graphs of a batch use at most `num_nodes - 1` nodes
            and `num_edges` edges, and their number is at most `num_graphs - 1`.
        fixed_size_strategy: How graphs are grouped: `"Window"` (full and random), `"StreamPack"` (in order),
            `"Optimal"` (few graphs per batch), or any function `(sizes, budget, *, generator) -> Packs`.
        over_size_strategy: Treatment of a graph above the budget: `"Error"`, `"Skip"` (counted in `num_skipped`), or
            `"Alone"` (a batch with only this graph).
        budgets: Further budgets by name: sizes of each graph, and their limit in a batch.
        cost: Time that each graph costs: `"nodes"`, `"edges"` or the name of a budget, numbers [num_graphs], or a
            function of the table of sizes, int64 [num_graphs, num_dimensions]. Batches that ranks work on at the same
            time then cost nearly the same. Default: batches keep the order that was drawn.
        shuffle: Whether each epoch has a random order, given by `seed` and the number of the epoch.
        seed: Number that decides every order, together with the number of the epoch; see `EpochChoices`.
        dataset: Dataset to measure; fairchem and metatrain pass it by this name. Its atoms are counted by
            `get_metadata("natoms", ...)` or `get_all_atom_counts()`, if it has such a method.
        num_replicas: Second name of `world_size`.
        kwargs: `rank` and `world_size`, see `EpochChoices`; and `drop_last`, which drops the batches that are too many
            for equal shards. Default: some batches are split in two.

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

    @plain_surroundings()
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
        dataset: Any = None,
        num_replicas: int | None = None,
        **kwargs: Unpack[ShardArguments],
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
        if num_replicas is not None and kwargs.setdefault("world_size", num_replicas) != num_replicas:
            raise ValueError(
                f"world_size is {kwargs['world_size']}, num_replicas {num_replicas}; they mean the same: pass one."
            )
        choices = EpochChoices(shuffle=shuffle, seed=seed, **kwargs).seeded_if(draws=False)
        work = None if cost is None else GraphWork(costs=_costs(cost, packer), sizes=packer.sizes, budget=packer.budget)
        super().__init__(packer, choices, work=work)
        self._is_dealt_out = False

    @property
    def shard(self) -> Shard:
        """Shard of this process, or all batches if accelerate distributes them."""
        if self._is_dealt_out:
            return Shard(group=sys.modules["accelerate"].state.PartialState().num_processes)
        return super().shard

    @property
    def batch_size(self) -> int | None:
        """Largest number of graphs in a batch; None in a process with an `Accelerator`, because batch sizes differ.

        accelerate's `BatchSamplerShard` reads this before it distributes the batches of one process over all processes.
        The sampler then yields all batches, in an order that assigns each process the same batches as without
        accelerate.
        """
        accelerate = sys.modules.get("accelerate.state")
        if accelerate is not None and accelerate.is_initialized():
            self._is_dealt_out = True
            return None
        return self.packer.num_graphs or self.packer.num_items

    @property
    def num_skipped(self) -> int:
        """Number of graphs that `OverSizeStrategy.Skip` leaves out."""
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
        """Set the epoch of the next pass, as trainers do. Without this call, passes are counted from 0.

        If a trainer counts from 0 again after a state was loaded, the state's epoch is added to the trainer's number.
        """
        self.follow(epoch)

    def set_epoch_and_start_iteration(self, epoch: int, start_iter: int) -> None:
        """Set the epoch and the number of batches to skip, as fairchem does to resume.

        Raises:
            ValueError: batches are skipped, and the seed that decides their order is unknown.
        """
        if start_iter and self.seed is None:
            raise ValueError(
                f"{start_iter} batches of epoch {epoch} are left out, but the seed that decides them is not known. "
                "Pass seed= as in the run before, or load its state_dict()."
            )
        part = self.shard
        self._run = Run(epoch, (EpochProgress(part.world_size, part.group, start_iter),) if start_iter else ())

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """Return the position of the pass, for `load_state_dict`, possibly with a different number of ranks.

        Args:
            num_batches: Number of batches of the pass that have been used. Default: all that were drawn. Workers of a
                `DataLoader` draw ahead, so pass the number, or use a `StatefulDataLoader`.
        """
        return super().state_dict(num_batches)

    def describe(self) -> str:
        """Return a description: how full the next epoch's batches are, and how evenly ranks share each step's work."""
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
    """Return the cost of each graph, float64 [num_graphs]."""
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

"""Decides the batches of each epoch, from the order of the graphs to the shard of this rank."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from popgeo.data.cutter import check_fits
from popgeo.data.flat_store import FlatStore
from popgeo.data.sizes import FixedSizeOptions
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.epoch import FixedSizeStrategy, Packing, Plan, epoch_generator, plan_epoch, shard


@dataclass(frozen=True, kw_only=True, eq=False)
class Planner:
    """What the batches of an epoch depend on, beside seed and epoch.

    Args:
        sizes: Nodes and edges of each graph. int64 [num_graphs, num_dimensions]
        store: All graphs, or some where they are fetched anew in each epoch.
        holds_all: Whether `store` has all graphs.
        options: Sizes of a batch.
        strategy: How graphs are put together into batches.
        over_size_strategy: What happens to graphs that do not fit.
        shuffle: Whether each epoch has an order of its own.
        sampler: The graphs of an epoch, in order.
        batch_sampler: The graphs of each batch.
        drop_last: Whether what does not fill a batch, or an item, is dropped.
        rank: Which shard.
        world_size: Of how many.
        group: Batches of an item.
    """

    sizes: np.ndarray
    store: FlatStore
    holds_all: bool
    options: FixedSizeOptions
    strategy: FixedSizeStrategy | Packing
    over_size_strategy: OverSizeStrategy
    shuffle: bool
    sampler: Iterable[int] | None
    batch_sampler: Iterable[Sequence[int]] | None
    drop_last: bool
    rank: int
    world_size: int
    group: int

    def plan(self, seed: int, epoch: int) -> Plan:
        """The batches of this rank in one epoch.

        Raises:
            ValueError: a graph, or a batch that a sampler chose, does not fit.
        """
        tell = getattr(self.sampler if self.batch_sampler is None else self.batch_sampler, "set_epoch", None)
        if tell is not None:
            tell(epoch)
        if self.batch_sampler is not None:
            packs = [np.asarray(pack, dtype=np.int64) for pack in self.batch_sampler]
            ids = np.concatenate([np.empty(0, dtype=np.int64), *packs])
            plan = Plan(ids=ids, ptr=np.cumsum([0, *map(len, packs)]))
        else:
            plan = self._pack(seed, epoch)
        if self.holds_all and not (self.over_size_strategy.trims_nodes or self.over_size_strategy.trims_edges):
            check_fits(self.store, self.options, plan.ids, plan.ptr)
        return shard(plan, self.rank, self.world_size, self.group, self.drop_last)

    def _pack(self, seed: int, epoch: int) -> Plan:
        # Without shuffle a strategy that draws at random draws the same in every epoch.
        generator = epoch_generator(seed, epoch if self.shuffle or self.sampler is not None else 0)
        order = np.arange(len(self.sizes))
        if self.sampler is not None:
            order = np.fromiter(self.sampler, dtype=np.int64)
        elif self.shuffle and not (isinstance(self.strategy, FixedSizeStrategy) and self.strategy.draws):
            order = torch.randperm(len(order), generator=generator).numpy()
        return plan_epoch(
            self.sizes,
            self.options.limits(self.store.size_axes),
            self.options.num_graphs - 1,
            self.strategy,
            order,
            generator=generator,
            over_size_strategy=self.over_size_strategy,
            drop_last=self.drop_last,
        )


class GraphIds:
    """Lets tools that look into a `DataLoader` see the batches as lists of graph ids."""

    def __init__(self, plan: Callable[[], Plan]) -> None:
        self.plan = plan

    def __iter__(self) -> Iterator[list[int]]:
        plan = self.plan()
        return (plan.pack(i).tolist() for i in range(len(plan)))

    def __len__(self) -> int:
        return len(self.plan())

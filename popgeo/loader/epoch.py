"""Which graphs share a batch in one epoch: a pure function of sizes, choices, seed and epoch."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from popgeo.data.cut import check_fits
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.graph_sizes import GraphSizes
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.chunk_order import ChunkOrder
from popgeo.loader.shard import Shard, shard
from popgeo.loader.strategy import FixedSizeStrategy, Packing, in_equal_numbers, put_together
from popgeo.packing import Budget, Packs, window


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


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochPacker:
    """Packs the graphs of one epoch after another into batches; it holds what that depends on beside seed and epoch.

    Args:
        sizes: Nodes and edges of each graph; asked for only where batches depend on them.
        store: All graphs, or some where they are fetched anew in each epoch.
        holds_all: Whether `store` has all graphs.
        options: Sizes of a batch.
        strategy: How graphs are put together into batches.
        over_size_strategy: What happens to graphs that do not fit.
        shuffle: Whether each epoch has an order of its own.
        sampler: The graphs of an epoch, in order.
        batch_sampler: The graphs of each batch.
        drop_last: Whether what does not fill a batch, or an item, is dropped.
        chunk_order: How a store on disk is shuffled; None where any order is as good.
    """

    sizes: GraphSizes
    store: FlatStore
    holds_all: bool
    options: FixedSizeOptions
    strategy: FixedSizeStrategy | Packing
    over_size_strategy: OverSizeStrategy
    shuffle: bool
    sampler: Iterable[int] | None
    batch_sampler: Iterable[Sequence[int]] | None
    drop_last: bool
    chunk_order: ChunkOrder | None = None

    @property
    def num_items(self) -> int:
        """How many graphs there are."""
        return len(self.sizes)

    @property
    def has_own_order(self) -> bool:
        """Whether a sampler decides the order, rather than seed and epoch."""
        return self.sampler is not None or self.batch_sampler is not None

    @property
    def needs_sizes(self) -> bool:
        """Whether which graphs share a batch depends on how large they are."""
        if self.batch_sampler is not None:
            return False
        return self.strategy is not FixedSizeStrategy.PadToMax or self.over_size_strategy is OverSizeStrategy.Skip

    def pack(self, seed: int, epoch: int, part: Shard) -> EpochPlan:
        """The batches of one epoch, and those of one rank.

        Raises:
            ValueError: a graph, or a batch that a sampler chose, does not fit.
        """
        tell = getattr(self.sampler if self.batch_sampler is None else self.batch_sampler, "set_epoch", None)
        if tell is not None:
            tell(epoch)
        packs = (
            self._pack_by_strategy(seed, epoch) if self.batch_sampler is None else Packs.from_lists(self.batch_sampler)
        )
        if self.holds_all and not (self.over_size_strategy.trims_nodes or self.over_size_strategy.trims_edges):
            check_fits(self.store, self.options, packs)
        mine = shard(packs, part.rank, part.world_size, part.group, self.drop_last)
        return EpochPlan(key=(seed, epoch), shard=part, whole=packs, packs=mine)

    def _pack_by_strategy(self, seed: int, epoch: int) -> Packs:
        # Without shuffle a strategy that draws at random draws the same in every epoch.
        generator = epoch_generator(seed, epoch if self.shuffle or self.sampler is not None else 0)
        order, strategy = np.arange(len(self.sizes)), self.strategy
        if self.sampler is not None:
            order = np.fromiter(self.sampler, dtype=np.int64)
        elif self.chunk_order is not None and (self.shuffle or strategy is FixedSizeStrategy.Window):
            order = self.chunk_order.draw(self.store.rows(order), generator)
            strategy = partial(window, shuffle=False) if strategy is FixedSizeStrategy.Window else strategy
        elif self.shuffle and not (isinstance(self.strategy, FixedSizeStrategy) and self.strategy.draws):
            order = torch.randperm(len(order), generator=generator).numpy()
        limits = tuple(self.options.limits(self.store.size_axes).tolist())
        budget = Budget(sizes=limits, num_graphs=self.options.num_graphs - 1)
        if not (self.sizes.are_known or self.needs_sizes):
            packs = in_equal_numbers(len(order), budget, self.drop_last)
            return Packs(order[packs.indices], packs.ptr)
        return pack_epoch(
            self.sizes.values,
            budget,
            strategy,
            order,
            generator=generator,
            over_size_strategy=self.over_size_strategy,
            drop_last=self.drop_last,
        )


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """The source of randomness of one epoch: the same for every rank, another for every epoch."""
    state = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def pack_epoch(
    sizes: np.ndarray,
    budget: Budget,
    strategy: FixedSizeStrategy | Packing,
    order: np.ndarray,
    *,
    generator: torch.Generator,
    over_size_strategy: OverSizeStrategy = OverSizeStrategy.Error,
    drop_last: bool = False,
) -> Packs:
    """Puts the graphs of one epoch together into batches.

    Args:
        sizes: Nodes and edges of each graph. int64 [num_graphs, num_dimensions]
        budget: What the real graphs of one batch may use.
        strategy: How to put them together.
        order: The graphs of this epoch, in order. int64 [number of graphs]
        generator: Source of randomness of the strategy.
        over_size_strategy: What happens to graphs that do not fit; those to be trimmed count as trimmed.
        drop_last: Drops an incomplete last batch of `PadToMax`.

    Raises:
        ValueError: a graph fits no batch.
    """
    sizes, limits = sizes.take(order, axis=0), np.array(budget.sizes)
    too_large = order[:0]
    # Dimension by dimension: numpy is many times slower at rows of two numbers, and there may be millions of graphs.
    fit = [dimension <= limit for dimension, limit in zip(sizes.T, budget.sizes, strict=True)]
    if not all(dimension.all() for dimension in fit):
        fits = np.asarray(np.logical_and.reduce(fit))
        if over_size_strategy.trims_nodes or over_size_strategy.trims_edges:
            sizes = np.minimum(sizes, limits)
        elif over_size_strategy is OverSizeStrategy.Skip:
            too_large = order[~fits]
            order, sizes = order[fits], sizes[fits]
        else:
            _refuse(sizes, limits, order, fits)
    skip = over_size_strategy is OverSizeStrategy.Skip
    packs = put_together(sizes, budget, strategy, generator=generator, skip=skip, drop_last=drop_last)
    return Packs(order[packs.indices], packs.ptr, np.concatenate([too_large, order[packs.skipped]]))


def _refuse(sizes: np.ndarray, limits: np.ndarray, order: np.ndarray, fits: np.ndarray) -> None:
    worst = int(np.argmin(fits))
    dimension = int(np.argmax(sizes[worst] > limits))
    what = "nodes" if dimension == 0 else "edges" if len(limits) == 2 else f"units of size {dimension}"
    raise ValueError(
        f"Graph {order[worst]} has {sizes[worst, dimension]} {what}, a batch holds {limits[dimension]} real ones: "
        f"{sizes[worst, dimension] - limits[dimension]} too many. {int((~fits).sum())} graphs do not fit. Raise "
        f"FixedSizeOptions, or pass OverSizeStrategy.Skip or one that trims."
    )

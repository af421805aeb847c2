"""The grouping of graphs into batches by a strategy."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from popgeo.data.cut import check_fits
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import why_not_flat
from popgeo.data.open_dataset import OpenDataset
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.chunk_order import ChunkOrder
from popgeo.loader.sampler import Packer
from popgeo.loader.strategy import FixedSizeStrategy, Packing, in_equal_numbers
from popgeo.loader.tensor_versions import TensorVersions
from popgeo.packing import Budget, Packs, totals_of_packs, window
from popgeo.packing.sizes import fitting


@dataclass(frozen=True, kw_only=True, eq=False)
class PackChoices:
    """The options for grouping graphs into batches.

    Args:
        strategy: Groups the graphs.
        over_size_strategy: Treatment of graphs that do not fit. Graphs that will be trimmed count with trimmed sizes.
        drop_last: Whether an incomplete last batch of `PadToMax` is dropped.
        names: Names of the dimensions of sizes in errors.
    """

    strategy: FixedSizeStrategy | Packing
    over_size_strategy: OverSizeStrategy = OverSizeStrategy.Error
    drop_last: bool = False
    names: tuple[str, ...] = ()


class StrategyPacker(PackChoices, Packer):
    """A packer that groups graphs by a strategy."""

    def order(self, shuffle: bool, generator: torch.Generator) -> np.ndarray | None:
        """Return every graph once, shuffled unless the strategy draws an order by itself."""
        draws_order = isinstance(self.strategy, FixedSizeStrategy) and self.strategy.draws_order
        return super().order(shuffle and not draws_order, generator)


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphPacker(StrategyPacker):
    """A packer of the graphs of a dataset.

    Args:
        opened: The dataset. Its sizes are read only if batches depend on them.
        seen: Versions of its tensors when they were read; None if graphs are fetched again in each epoch.
        by_batch: Whether graphs are checked for changes when their batch is made, and not all before an epoch.
        options: Sizes of a batch.
        chunk_order: How a store on disk is shuffled; None if any order is as fast, or if a sampler decides the order.
    """

    opened: OpenDataset
    seen: TensorVersions | None
    by_batch: bool = False
    options: FixedSizeOptions
    chunk_order: ChunkOrder | None = None

    @property
    def is_pure(self) -> bool:  # type: ignore[override]  # a user's function may read anything
        """Whether the batches of an epoch depend only on its seed and number."""
        return isinstance(self.strategy, FixedSizeStrategy)

    @property
    def num_items(self) -> int:  # type: ignore[override]  # read when needed
        """Number of graphs."""
        return len(self.opened.sizes)

    def order(self, shuffle: bool, generator: torch.Generator) -> np.ndarray | None:
        """Return every graph once, in an order with fast reads if the dataset is on disk."""
        if self.chunk_order is not None and (shuffle or self.strategy is FixedSizeStrategy.Window):
            return self.chunk_order.draw(self.opened.store.rows(np.arange(self.num_items)), generator)
        return super().order(shuffle, generator)

    def pack(self, order: np.ndarray | None, generator: torch.Generator) -> Packs:
        """Group some graphs into batches, in their order unless the strategy draws another."""
        limits = tuple(self.options.limits(self.opened.store.size_axes).tolist())
        budget = Budget(sizes=limits, num_graphs=self.options.num_graphs - 1)
        skips = self.over_size_strategy is OverSizeStrategy.Skip
        if self.strategy is FixedSizeStrategy.PadToMax and not skips and not self.opened.sizes.are_known:
            order = np.arange(self.num_items) if order is None else order
            return in_equal_numbers(order, budget.num_graphs, self.drop_last)
        in_order = self.chunk_order is not None and self.strategy is FixedSizeStrategy.Window
        choices = replace(self, strategy=partial(window, shuffle=False)) if in_order else self
        return pack_epoch(self.opened.sizes.values, budget, choices, order, generator)

    def warn_of_sizes(self) -> None:
        """Warn before the first epoch if batches of equally many graphs will not fit."""
        refuses = self.strategy is FixedSizeStrategy.PadToMax and self.over_size_strategy is OverSizeStrategy.Error
        if not refuses or not self.opened.sizes.are_known:
            return
        sizes, count = self.opened.sizes.values, self.options.num_graphs - 1
        num_full, limits = len(sizes) // count, self.options.limits(self.opened.store.size_axes)
        if not (sizes.sum(0) * count > limits * len(sizes)).any():  # sort only if needed
            return
        # In the best case the largest graphs are in the last batch, which may be only partly full.
        needed = np.sort(sizes, axis=0)[: num_full * count].sum(0) / max(num_full, 1)
        if (needed > limits).any():
            dim = int((needed > limits).argmax())
            rows = self.opened.store.size_axes[dim].label
            warnings.warn(
                f"{count} graphs have {needed[dim]:.0f} {rows} in the mean, and batches of these sizes have room for "
                f"{limits[dim]}: PadToMax, which counts only graphs, will fail. Sizes that tune() chose need "
                f"fixed_size_strategy='Window'.",
                stacklevel=5,
            )

    def check_unchanged(self) -> None:
        """Raise if the dataset was edited since the loader read it, or its number of graphs changed."""
        dataset, count = self.opened.dataset, len(self.opened.store)
        now = why_not_flat(dataset) if len(dataset) == count else f"it had {count} graphs and has {len(dataset)}"
        if self.opened.holds_all and now is not None:
            raise ValueError(f"The dataset has changed since the loader read it: {now}. Make a new loader.")
        if not self.by_batch:
            self._check_values(None)

    def check_items(self, indices: np.ndarray) -> None:
        """Raise if graphs of the next batch were edited since the loader read them."""
        if self.by_batch:
            self._check_values(indices)

    def _check_values(self, graphs: np.ndarray | None) -> None:
        if self.seen is not None and (change := self.seen.first_change(self.opened.dataset, graphs)) is not None:
            raise ValueError(
                f"The dataset has changed since the loader read it: {change} was replaced or edited. A batch would "
                "hold what it was before. Make the loader after the change."
            )

    def check(self, packs: Packs) -> None:
        """Raise if a batch, perhaps of a user's sampler, is too large and may not be trimmed."""
        if self.opened.holds_all and not (self.over_size_strategy.trims_nodes or self.over_size_strategy.trims_edges):
            try:
                check_fits(self.opened.store, self.options, packs)
            except ValueError as error:
                if self.strategy is not FixedSizeStrategy.PadToMax:
                    raise
                raise ValueError(f"{error} Sizes that tune() chose need fixed_size_strategy='Window'.") from error


def pack_epoch(
    sizes: np.ndarray, budget: Budget, choices: PackChoices, order: np.ndarray | None, generator: torch.Generator
) -> Packs:
    """Group the graphs of one epoch into batches.

    Args:
        sizes: Nodes and edges of each graph. int64 [num_graphs, num_dimensions]
        budget: Limits of the real graphs of one batch.
        choices: Strategy, and treatment of graphs that do not fit.
        order: Graphs of this epoch, in order; None for all, in ascending order. int64 [number of graphs]
        generator: Source of randomness of the strategy.

    Raises:
        ValueError: a graph fits no batch, or a user's function does not use each graph exactly once, or exceeds the
            budget.

    Example:
        >>> sizes, budget = np.array([[3, 1], [2, 0], [4, 2]]), Budget(sizes=(9, 9), num_graphs=2)
        >>> pack_epoch(sizes, budget, PackChoices(strategy=FixedSizeStrategy.PadToMax), None, torch.Generator())
        Packs(3 graphs in 2 packs, 1.5 per pack)
    """
    strategy, over_size_strategy = choices.strategy, choices.over_size_strategy
    sizes, limits = sizes if order is None else sizes.take(order, axis=0), np.array(budget.sizes)
    fitting_sizes, fits, too_large = fitting(sizes, budget, skip=True, narrow=True)
    if fits is not None:
        order = np.arange(len(sizes)) if order is None else order
        if over_size_strategy.trims_nodes or over_size_strategy.trims_edges:
            sizes, too_large = np.minimum(sizes, limits), too_large[:0]
        elif over_size_strategy in (OverSizeStrategy.Skip, OverSizeStrategy.Alone):
            sizes, order, too_large = fitting_sizes, order[fits], order[too_large]
        else:
            _refuse(sizes, limits, order, too_large, choices.names)
    if strategy is FixedSizeStrategy.PadToMax and over_size_strategy is OverSizeStrategy.Skip:
        packs = equal_numbers_that_fit(sizes, budget)
    elif strategy is FixedSizeStrategy.PadToMax:
        packs = in_equal_numbers(np.arange(len(sizes)), budget.num_graphs, choices.drop_last)
    elif isinstance(strategy, FixedSizeStrategy):
        assert strategy.packing is not None  # only PadToMax has no packing function
        packs = strategy.packing(sizes, budget, generator=generator)
    else:
        packs = strategy(sizes, budget, generator=generator)
        packs = Packs(np.asarray(packs.indices), np.asarray(packs.ptr))
        check_packing(packs, sizes, budget)
    if order is not None:
        packs = Packs(order[packs.indices], packs.ptr, order[packs.skipped])
    if over_size_strategy is OverSizeStrategy.Alone:
        alone = Packs(too_large, np.arange(len(too_large) + 1))
        packs = Packs.concatenate([packs, alone])
        return packs.take(torch.randperm(len(packs), generator=generator).numpy()) if len(alone) else packs
    return replace(packs, skipped=np.concatenate([too_large, packs.skipped]))


def _refuse(sizes: np.ndarray, limits: np.ndarray, order: np.ndarray, large: np.ndarray, names: Sequence[str]) -> None:
    worst = int(large[0])
    dimension = int(np.argmax(sizes[worst] > limits))
    known = names or (("nodes", "edges") if len(limits) <= 2 else ("nodes",))
    what = known[dimension] if dimension < len(known) else f"units of size {dimension}"
    limit = f"num_{what} of FixedSizeOptions" if what in ("nodes", "edges") else "the budget"
    raise ValueError(
        f"Graph {order[worst]} has {sizes[worst, dimension]} {what}, a batch holds {limits[dimension]} real ones: "
        f"{sizes[worst, dimension] - limits[dimension]} too many. {len(large)} graphs do not fit. Raise "
        f"{limit}, or pass OverSizeStrategy.Skip or one that trims."
    )


def equal_numbers_that_fit(sizes: np.ndarray, budget: Budget) -> Packs:
    """Group equal numbers of graphs into batches, and skip each graph that does not fit its batch.

    Args:
        sizes: Sizes of each graph. int64 [num_graphs, num_dimensions]
        budget: Limits of a batch.

    Example:
        >>> equal_numbers_that_fit(np.array([[3], [3], [1]]), Budget(sizes=(5,), num_graphs=2)).skipped.tolist()
        [1]
    """
    limits = np.array(budget.sizes)
    packs: list[list[int]] = []
    skipped: list[int] = []
    for start in range(0, len(sizes), budget.num_graphs):
        packs.append([])
        used = np.zeros_like(limits)
        for i in range(start, min(start + budget.num_graphs, len(sizes))):
            fits = bool((used + sizes[i] <= limits).all())
            (packs[-1] if fits else skipped).append(i)
            used = used + sizes[i] if fits else used
    return Packs.from_lists(packs, skipped)


def check_packing(packs: Packs, sizes: np.ndarray, budget: Budget) -> None:
    """Check that a user's function packs each graph exactly once, and no batch over budget.

    Raises:
        ValueError: a graph is missing or comes twice, or a batch is over the budget.
    """
    seen = np.bincount(packs.indices, minlength=len(sizes))
    if len(seen) != len(sizes) or (seen != 1).any():
        odd = int(np.argmax(seen != 1))
        raise ValueError(f"The packing uses graph {odd} {seen[odd]} times; each graph must be used exactly once.")
    totals, counts = totals_of_packs(sizes, packs.indices, packs.ptr), np.diff(packs.ptr)
    over = (totals > budget.sizes).any(axis=1) | (counts > budget.num_graphs)
    if over.any():
        pack = int(np.argmax(over))
        raise ValueError(
            f"The packing's batch {pack} has {counts[pack]} graphs of {budget.num_graphs} and sizes "
            f"{totals[pack].tolist()} of {list(budget.sizes)}; it must stay within its budget."
        )

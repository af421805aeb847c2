"""Which graphs share a batch in one epoch: a pure function of sizes, seed, epoch and shard."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch

from popgeo.data.trim import OverSizeStrategy
from popgeo.packing import Budget, Packs, optimal, stream, totals_of_packs, window


class FixedSizeStrategy(Enum):
    """How graphs are put together into batches.

    Example:
        >>> FixedSizeStrategy["Window"]
        <FixedSizeStrategy.Window: 2>
    """

    PadToMax = 0
    """The same number of graphs, `batch_size - 1`, in every batch."""
    StreamPack = 1
    """As many graphs as fit, in the order of the (shuffled) dataset."""
    Window = 2
    """Full batches, as random as a shuffle: drawn from a window of pending graphs and finished by an exact fill."""
    Optimal = 3
    """As few batches as can be, for batches of a few graphs each."""

    @property
    def draws(self) -> bool:
        """Whether the strategy puts the graphs in a random order of its own."""
        return self in (FixedSizeStrategy.Window, FixedSizeStrategy.Optimal)


Packing: TypeAlias = Callable[..., Packs]
"""`packing(sizes, budget, *, generator) -> Packs`, as in `popgeo.packing`."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The batches of one epoch of one rank.

    Args:
        ids: Graphs, batch after batch. int64 [number of graphs]
        ptr: Where each batch starts in `ids`. int64 [num_batches + 1]
        num_skipped: Graphs left out because they do not fit.
        num_planned: Graphs of all ranks together.
    """

    ids: np.ndarray
    ptr: np.ndarray
    num_skipped: int = 0
    num_planned: int = 0

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def pack(self, index: int) -> np.ndarray:
        """The graphs of one batch."""
        return self.ids[self.ptr[index] : self.ptr[index + 1]]

    def __repr__(self) -> str:
        skipped = f", {self.num_skipped:,} skipped" if self.num_skipped else ""
        return f"{type(self).__name__}({len(self.ids):,} graphs in {len(self):,} batches{skipped})"


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """The source of randomness of one epoch: the same for every rank, another for every epoch."""
    state = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def plan_epoch(
    sizes: np.ndarray,
    limits: np.ndarray,
    num_graphs: int,
    strategy: FixedSizeStrategy | Packing,
    order: np.ndarray,
    *,
    generator: torch.Generator,
    over_size_strategy: OverSizeStrategy = OverSizeStrategy.Error,
    drop_last: bool = False,
) -> Plan:
    """Puts the graphs of one epoch together into batches.

    Args:
        sizes: Nodes and edges of each graph. int64 [num_graphs, num_dimensions]
        limits: What the real graphs of one batch may use of each size. int64 [num_dimensions]
        num_graphs: How many real graphs one batch may have.
        strategy: How to put them together.
        order: The graphs of this epoch, in order. int64 [number of graphs]
        generator: Source of randomness of the strategy.
        over_size_strategy: What happens to graphs that do not fit; those to be trimmed are planned for, not trimmed.
        drop_last: Drops an incomplete last batch of `PadToMax`.

    Raises:
        ValueError: a graph fits no batch.
    """
    sizes = sizes.take(order, axis=0)
    num_skipped = 0
    # Dimension by dimension: numpy is many times slower at rows of two numbers, and there may be millions of graphs.
    fit = [dimension <= limit for dimension, limit in zip(sizes.T, limits.tolist(), strict=True)]
    if not all(dimension.all() for dimension in fit):
        fits = np.asarray(np.logical_and.reduce(fit))
        if over_size_strategy.trims_nodes or over_size_strategy.trims_edges:
            sizes = np.minimum(sizes, limits)
        elif over_size_strategy is OverSizeStrategy.Skip:
            num_skipped = int((~fits).sum())
            order, sizes = order[fits], sizes[fits]
        else:
            _refuse(sizes, limits, order, fits)
    if strategy is FixedSizeStrategy.PadToMax:
        if over_size_strategy is OverSizeStrategy.Skip:
            kept = _fill_in_order(sizes, limits, num_graphs)
            num_skipped += len(order) - len(kept[0])
            return Plan(ids=order[kept[0]], ptr=kept[1], num_skipped=num_skipped, num_planned=len(kept[0]))
        stop = len(order) // num_graphs * num_graphs if drop_last else len(order)
        ptr = np.append(np.arange(0, stop, num_graphs), stop)
        return Plan(ids=order[:stop], ptr=ptr if stop else ptr[:1], num_skipped=num_skipped, num_planned=stop)
    pack = _PACKINGS[strategy] if isinstance(strategy, FixedSizeStrategy) else strategy
    budget = Budget(sizes=tuple(limits.tolist()), num_graphs=num_graphs)
    packs = pack(sizes, budget, generator=generator)
    if not isinstance(strategy, FixedSizeStrategy):
        _check(packs, sizes, limits, num_graphs)
    ids = order[packs.indices]
    return Plan(ids=ids, ptr=np.asarray(packs.ptr), num_skipped=num_skipped, num_planned=len(ids))


_PACKINGS: dict[FixedSizeStrategy, Packing] = {
    FixedSizeStrategy.StreamPack: stream,
    FixedSizeStrategy.Window: window,
    FixedSizeStrategy.Optimal: optimal,
}


def shard(plan: Plan, rank: int, world_size: int, group: int, drop_last: bool = False) -> Plan:
    """The part of a plan that belongs to one rank: every `world_size`-th batch, a multiple of `group` of them.

    Batches are split in two until their number is a multiple of `world_size * group`, so that every graph is used
    once and all ranks do equally many steps; where even that is not enough, batches of padding alone are added. With
    `drop_last` the batches that are too many are dropped instead.
    """
    ptr = plan.ptr
    missing = -len(plan) % (world_size * group)
    if missing and drop_last:
        ptr = ptr[: len(plan) // (world_size * group) * (world_size * group) + 1]
    elif missing:
        cuts = _cuts(ptr, missing)
        padding = np.full(missing - len(cuts), len(plan.ids), dtype=np.int64)
        ptr = np.sort(np.concatenate([ptr, np.array(cuts, dtype=np.int64), padding]))
    if world_size == 1:
        return Plan(ids=plan.ids[: ptr[-1]], ptr=ptr, num_skipped=plan.num_skipped, num_planned=plan.num_planned)
    chosen = np.arange(rank, len(ptr) - 1, world_size)
    counts = ptr[chosen + 1] - ptr[chosen]
    ids = np.concatenate([plan.ids[:0], *(plan.ids[ptr[i] : ptr[i + 1]] for i in chosen)])
    local = np.concatenate([[0], counts.cumsum()])
    return Plan(ids=ids, ptr=local, num_skipped=plan.num_skipped, num_planned=plan.num_planned)


def _cuts(ptr: np.ndarray, wanted: int) -> list[int]:
    """Where to split batches in two to get so many more; the largest first, of equal ones the last."""
    cuts: list[int] = []
    heap = [(start - stop, -start, stop) for start, stop in pairwise(ptr.tolist())]
    heapq.heapify(heap)
    while heap and len(cuts) < wanted:
        negative_count, negative_start, stop = heapq.heappop(heap)
        if negative_count > -2:
            break
        start = -negative_start
        middle = (start + stop) // 2
        cuts.append(middle)
        heapq.heappush(heap, (start - middle, -start, middle))
        heapq.heappush(heap, (middle - stop, -middle, stop))
    return cuts


def _fill_in_order(sizes: np.ndarray, limits: np.ndarray, per_batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Deals graphs into batches of `per_batch`; one that overflows its batch is left out of it."""
    kept: list[int] = []
    ptr = [0]
    for start in range(0, len(sizes), per_batch):
        used = np.zeros_like(limits)
        for i in range(start, min(start + per_batch, len(sizes))):
            if (used + sizes[i] <= limits).all():
                kept.append(i)
                used = used + sizes[i]
        ptr.append(len(kept))
    return np.array(kept, dtype=np.int64), np.array(ptr)


def _refuse(sizes: np.ndarray, limits: np.ndarray, order: np.ndarray, fits: np.ndarray) -> None:
    worst = int(np.argmin(fits))
    dimension = int(np.argmax(sizes[worst] > limits))
    what = "nodes" if dimension == 0 else "edges" if len(limits) == 2 else f"units of size {dimension}"
    raise ValueError(
        f"Graph {order[worst]} has {sizes[worst, dimension]} {what}, a batch holds {limits[dimension]} real ones: "
        f"{sizes[worst, dimension] - limits[dimension]} too many. {int((~fits).sum())} graphs do not fit. Raise "
        f"FixedSizeOptions, or pass OverSizeStrategy.Skip or one that trims."
    )


def _check(packs: Packs, sizes: np.ndarray, limits: np.ndarray, num_graphs: int) -> None:
    """A packing of the user's is checked like our own: each graph exactly once, no batch over budget."""
    indices, ptr = np.asarray(packs.indices), np.asarray(packs.ptr)
    seen = np.bincount(indices, minlength=len(sizes))
    if len(seen) != len(sizes) or (seen != 1).any():
        odd = int(np.argmax(seen != 1))
        raise ValueError(f"The packing uses graph {odd} {seen[odd]} times; each graph must be used exactly once.")
    totals = totals_of_packs(sizes, indices, ptr)
    over = (totals > limits).any(axis=1) | (np.diff(ptr) > num_graphs)
    if over.any():
        pack = int(np.argmax(over))
        raise ValueError(
            f"The packing's batch {pack} has {ptr[pack + 1] - ptr[pack]} graphs of {num_graphs} and sizes "
            f"{totals[pack].tolist()} of {limits.tolist()}; it must stay within its budget."
        )

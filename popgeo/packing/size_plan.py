"""Plans of sizes: the sizes that share a pack, before graphs are chosen."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from popgeo.packing.packs import Budget, Ids
from popgeo.packing.sizes import fitting

# With more (size, remaining room) pairs, sizes are rounded up to a coarser unit, so that planning stays fast.
_MOST_STATES = 400_000


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """The number of graphs of each size, in the dimension that limits the packs.

    Args:
        sizes: Distinct sizes in units, ascending. [num_sizes]
        counts: Graphs of each size. [num_sizes]
        capacity: Units per pack.
        num_graphs: Graphs per pack.
        dim: The dimension of the sizes.
        unit: Nodes (edges, ...) per unit; sizes are rounded up to whole units.
        bound: A lower bound of the number of packs by volume, over all dimensions.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    capacity: int
    num_graphs: int
    dim: int = 0
    unit: int = 1
    bound: int = 0

    def __repr__(self) -> str:
        sizes = f", {self.sizes[0]:,} to {self.sizes[-1]:,}" if self.sizes else ""
        return (
            f"{type(self).__name__}({sum(self.counts):,} graphs of {len(self.sizes):,} sizes{sizes}; a pack holds "
            f"{self.capacity:,}, and {self.num_graphs:,} graphs; {self.bound:,} packs at least)"
        )


@dataclass(frozen=True, kw_only=True)
class SizePlan:
    """The sizes of each kind of pack and the number of packs of each kind; `assign` chooses the graphs.

    Args:
        composition: The sizes of each kind of pack, in units, largest first.
        counts: The number of packs of each kind.
        bound: A lower bound of the number of packs of any plan.
        dim: The dimension of the sizes.
        unit: Nodes (edges, ...) per unit.

    Example:
        >>> plan = SizePlan(composition=((5, 2), (4,)), counts=(10, 1), bound=10)
        >>> plan.num_packs, plan.gap, plan.num_graphs
        (11, 1, 21)
    """

    composition: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    bound: int
    dim: int = 0
    unit: int = 1

    @classmethod
    def of(cls, sizes: Histogram, kinds: Iterable[tuple[tuple[int, ...], int]], bound: int) -> "SizePlan":
        """Return a plan from pairs of a kind of pack and the number of these packs."""
        kinds = sorted(kinds)
        contents, counts = tuple(contents for contents, _ in kinds), tuple(count for _, count in kinds)
        return cls(composition=contents, counts=counts, bound=bound, dim=sizes.dim, unit=sizes.unit)

    @property
    def num_packs(self) -> int:
        """The number of packs of all kinds together."""
        return sum(self.counts)

    @property
    def num_graphs(self) -> int:
        """The number of graphs of all packs together."""
        return sum(len(sizes) * count for sizes, count in zip(self.composition, self.counts, strict=True))

    @property
    def gap(self) -> int:
        """The largest possible distance from the best plan, in packs; 0 proves that this plan is the best."""
        return self.num_packs - self.bound

    def __repr__(self) -> str:
        gap = "proven the fewest" if self.gap == 0 else f"at most {self.gap:,} more than the fewest"
        return (
            f"{type(self).__name__}({self.num_graphs:,} graphs in {self.num_packs:,} packs of "
            f"{len(self.counts):,} kinds; {gap})"
        )


def histogram(sizes: ArrayLike, budget: Budget, *, skip: bool = False, exact: bool = False) -> Histogram:
    """Count the graphs of each size, in the dimension that needs the most packs by volume.

    Args:
        sizes: Sizes of each graph. [num_graphs, num_dims] or [num_graphs]
        budget: The capacity of a pack.
        skip: Whether to leave out graphs that no pack can hold, instead of raising an error.
        exact: Whether to keep exact sizes, however many there are.

    Raises:
        ValueError: a graph can never fit and `skip` is False.

    Example:
        >>> histogram([[3, 9], [3, 2], [5, 1]], Budget(sizes=(6, 99), num_graphs=4)).counts
        (2, 1)
    """
    table, _, _ = fitting(sizes, budget, skip=skip)
    dims = zip(table.T, budget.sizes, strict=True)
    bounds = [-(-int(column.sum()) // limit) if limit else 0 for column, limit in dims]
    dim = int(np.argmax(bounds))
    bound = max(bounds[dim], -(-len(table) // budget.num_graphs))
    limit = budget.sizes[dim]
    values, counts = _count(table[:, dim])
    unit = 1
    for _ in range(limit):  # a pack of one unit has few states
        if exact or min(len(values), limit // unit + 1) * (limit // unit) <= _MOST_STATES:
            break
        unit += max(1, unit // 8)
    if unit > 1:
        values, counts = _count(to_units(table[:, dim], unit, limit))
    return Histogram(
        sizes=tuple(values.tolist()),
        counts=tuple(counts.tolist()),
        capacity=limit // unit,
        num_graphs=budget.num_graphs,
        dim=dim,
        unit=unit,
        bound=bound,
    )


def to_units(column: Ids, unit: int, limit: int) -> Ids:
    """Return sizes in whole units, rounded up, but at most the units of a pack."""
    return column if unit == 1 else np.minimum(-(-column // unit), limit // unit)


def _count(column: Ids) -> tuple[Ids, Ids]:
    if len(column) and column.max() < 1 << 20:
        counts = np.bincount(column)
        values = np.flatnonzero(counts)
        return values, counts[values]
    return np.unique(column, return_counts=True)

"""Several fixed shapes, where one wastes too much: each costs a compilation and is filled with graphs of like size."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from popgeo.packing.packs import Ids
from popgeo.packing.sizes import as_table, names
from popgeo.packing.tune import Shape, slot_costs, tune


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Ranges of the first size (nodes), each with a fixed shape of its own.

    Args:
        largest: The largest first size of each range, in rising order.
        shapes: The shape of each range.
        cost: Expected cost per graph, relative to that of one shape for all.
    """

    largest: tuple[int, ...]
    shapes: tuple[Shape, ...]
    cost: float

    def __len__(self) -> int:
        return len(self.shapes)

    def __repr__(self) -> str:
        ranges = "; ".join(
            f"up to {most:,}: " + " and ".join(f"{slots:,} {name}" for slots, name in _slots(shape))
            for most, shape in zip(self.largest, self.shapes, strict=True)
        )
        return f"{type(self).__name__}({ranges}; cost {self.cost:.2f} of one shape for all)"

    def ids(self, sizes: ArrayLike) -> list[Ids]:
        """Which graphs belong to each range; they are packed range by range.

        Args:
            sizes: Sizes of each graph. [num_graphs, num_dims] or [num_graphs]

        Raises:
            ValueError: a graph is larger than the last range.
        """
        return _split(as_table(sizes)[:, 0], self.largest)


def _slots(shape: Shape) -> list[tuple[int, str]]:
    return list(zip(shape.slots, names(len(shape.slots)), strict=True))


def tune_buckets(
    sizes: ArrayLike,
    target_graphs: float,
    *,
    max_buckets: int = 4,
    worth: float = 0.05,
    align: int = 8,
    cost: tuple[float, ...] | None = None,
    num_node_dims: int = 1,
    progress_bar: bool | None = None,
) -> Buckets:
    """Choose one fixed shape, or several where each further one is worth its compilation.

    The ranges hold equal shares of the first size. Batches of a range are alike in size, so prefer one shape where it
    wastes little, as it does from about 4 mean graphs a batch.

    Args:
        sizes: Sizes of each graph: nodes, then edges (or per type). [num_graphs, num_dims] or [num_graphs]
        target_graphs: Real graphs of a batch, on average, in every range.
        max_buckets: The most shapes.
        worth: The part of the cost per graph that a further shape must save.
        align: Slots are multiples of this.
        cost: What a slot of each dimension costs, as `tune` takes it.
        num_node_dims: How many dimensions, from the first, are nodes and keep a slot for padding.
        progress_bar: Whether to show a bar where it lasts, as `tune` takes it.

    Raises:
        ValueError: `max_buckets` is below 1, or as `tune`.

    Example:
        >>> sizes = np.arange(501, 1001).repeat(4)  # never two of them in 1000 nodes
        >>> buckets = tune_buckets(sizes, target_graphs=1)
        >>> len(buckets) > 1, buckets.cost < 0.9, [len(ids) > 0 for ids in buckets.ids(sizes)] == [True] * len(buckets)
        (True, True, True)
    """
    if max_buckets < 1:
        raise ValueError(f"max_buckets is {max_buckets}; there must be at least 1 shape.")
    table = as_table(sizes)
    tuned = functools.partial(
        tune, target_graphs=target_graphs, align=align, num_node_dims=num_node_dims, progress_bar=progress_bar
    )
    one = tuned(table, cost=cost)
    weights = slot_costs(table, cost)
    best = Buckets(largest=(int(table[:, 0].max()),), shapes=(one,), cost=1.0)
    reference = _cost((one,), [table], weights)
    for count in range(2, max_buckets + 1):
        largest = _equal_shares(table[:, 0], count)
        parts = [table[ids] for ids in _split(table[:, 0], largest)]
        shapes = tuple(tuned(part, cost=weights) for part in parts)
        found = Buckets(largest=largest, shapes=shapes, cost=_cost(shapes, parts, weights) / reference)
        if found.cost < best.cost * (1 - worth) ** (len(found) - len(best)):
            best = found
    return best


def _equal_shares(first: NDArray[np.int64], count: int) -> tuple[int, ...]:
    """The upper ends of so many ranges with about equal sums; fewer where one size has more than a share."""
    ordered = np.sort(first)
    shares = np.cumsum(ordered) * count
    ends = ordered[np.searchsorted(shares, shares[-1] // count * np.arange(1, count))]
    return tuple(sorted({*ends.tolist(), int(ordered[-1])}))


def _split(first: NDArray[np.int64], largest: tuple[int, ...]) -> list[Ids]:
    bucket = np.searchsorted(largest, first)
    if len(first) and bucket.max() == len(largest):
        worst = int(first.argmax())
        raise ValueError(
            f"Graph {worst} has first size {first[worst]}, the last range ends at {largest[-1]}. Tune for these sizes."
        )
    return [np.flatnonzero(bucket == i) for i in range(len(largest))]


def _cost(shapes: Sequence[Shape], parts: Sequence[NDArray[np.int64]], weights: tuple[float, ...]) -> float:
    """What all graphs cost together, each part in its shape."""
    return sum(
        len(part) / shape.graphs_per_batch * float(np.dot(weights, shape.slots))
        for part, shape in zip(parts, shapes, strict=True)
    )

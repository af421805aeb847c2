"""The choice of a fixed shape for a dataset; `num_nodes` matters more than the packing algorithm."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from popgeo.packing.packs import Budget
from popgeo.packing.sizes import as_table, names
from popgeo.packing.window import window
from popgeo.progress import progress

# A window uses graphs that pack well first, so the first packs of a trial do not count. A trial has a small window,
# so that few packs are lost.
_SAMPLE = 12288  # graphs packed for trial
_WINDOW = 512
_SETTLED = 4096  # graphs packed before packs count
_NEAREST = 12  # candidates for num_nodes on either side of the target
_FINALISTS = 5  # candidates that are tried with several amounts of slack
_SLACKS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
_AS_GOOD = 0.002  # largest extra cost of a shape that is preferred because it is closer to the target


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A fixed shape for the batches of a dataset, padding included, with its expected efficiency.

    Args:
        slots: Slots for each dimension; one slot of every node dimension is for padding.
        num_graphs: Slots for graphs; one slot is for padding.
        budget: The capacity of a batch for real graphs.
        efficiency: Expected share of used slots, for each dimension; 0 if there are no slots.
        graphs_per_batch: Expected real graphs of a batch.
        reason: One sentence: the choice and its reason.
    """

    slots: tuple[int, ...]
    num_graphs: int
    budget: Budget
    efficiency: tuple[float, ...]
    graphs_per_batch: float
    reason: str

    @property
    def num_nodes(self) -> int:
        """The number of node slots: the first dimension."""
        return self.slots[0]

    @property
    def num_edges(self) -> int:
        """The number of edge slots: the second dimension, or 0."""
        return self.slots[1] if len(self.slots) > 1 else 0

    def __repr__(self) -> str:
        rows = zip(self.slots, names(len(self.slots)), self.efficiency, strict=True)
        slots = ", ".join(f"{count:,} {name} ({full:.1%} full)" for count, name, full in rows)
        graphs = f"{self.num_graphs:,} graphs; {self.graphs_per_batch:.1f} real graphs per batch"
        return f"{type(self).__name__}({slots}, {graphs})"


def tune(
    sizes: ArrayLike,
    target_graphs: float,
    *,
    align: int = 8,
    cost: tuple[float, ...] | None = None,
    num_node_dims: int = 1,
    progress_bar: bool | None = None,
) -> Shape:
    """Choose the fixed shape with the least waste, for about `target_graphs` real graphs per batch.

    A sample of the dataset is packed by `window` into each candidate: the multiples of `align` around the target for
    the first dimension, each with several amounts of slack in the other dimensions. Among the shapes that cost at most
    0.2 % more per graph than the cheapest shape, the shape closest to the target wins.

    Args:
        sizes: Sizes of each graph: nodes, then edges (or per type). [num_graphs, num_dims] or [num_graphs]
        target_graphs: Real graphs of a batch, on average.
        align: Divisor of all numbers of slots. Default: 8.
        cost: Cost of a slot of each dimension, (a, b) in `a * nodes + b * edges`. Default: the slots of a mean graph
            cost the same in every dimension.
        num_node_dims: The number of leading dimensions that count nodes and have a slot for padding.
        progress_bar: Whether to show a bar after one second. Default: at a terminal and in notebooks.

    Returns:
        The shape, with its expected efficiency and the reason in one sentence.

    Raises:
        ValueError: there are no graphs, the target or `align` is below 1, or `cost` does not match the dimensions.

    Example:
        >>> shape = tune([[9, 18], [12, 24], [15, 30]] * 500, target_graphs=32)
        >>> shape.num_nodes % 8, shape.efficiency[0] > 0.98
        (0, True)
    """
    table = as_table(sizes)
    num_dims = table.shape[1]
    if not len(table):
        raise ValueError("sizes is empty, so there is nothing to tune for. Pass the sizes of at least one graph.")
    if target_graphs < 1 or align < 1:
        raise ValueError(f"target_graphs is {target_graphs} and align {align}; both must be at least 1.")
    mean = np.array([column.mean() for column in table.T])
    largest = np.array([column.max() for column in table.T])
    weights = slot_costs(table, cost)
    padding = np.arange(num_dims) < num_node_dims
    count = max(_SAMPLE, 16 * round(target_graphs))  # the sample is always the same
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0)).numpy()
    sample = table if len(table) <= count else table[order[:count]]

    lengths = _lengths(target_graphs * mean[0] + padding[0], int(largest[0] + padding[0]), align)
    scale = {n: (n - padding[0]) / mean[0] if mean[0] else target_graphs for n in lengths}  # mean graphs of a batch
    # First the other dimensions are ignored: only lengths that can be filled remain.
    given = [(n,) for n in lengths], sample[:, :1], padding[:1], progress_bar
    trials = _best(*given, lambda slots, full, graphs: -full, lambda least: least + 2 * _AS_GOOD)
    shapes = set()
    for trial, slack in product(trials[:_FINALISTS], _SLACKS):
        needed = np.maximum(np.ceil(mean * scale[trial.num_nodes] * (1 + slack)), largest) + padding
        shapes.add((trial.num_nodes, *(-(-needed[1:] // align) * align).astype(int).tolist()))
    trials = _best(
        sorted(shapes),
        sample,
        padding,
        progress_bar,
        lambda slots, full, graphs: slots @ weights / graphs,
        lambda least: least * (1 + _AS_GOOD),
    )
    chosen = min(trials, key=lambda trial: abs(trial.graphs_per_batch - target_graphs))
    return replace(chosen, reason=_reason(chosen, target_graphs, len(shapes)))


def slot_costs(sizes: ArrayLike, cost: tuple[float, ...] | None) -> tuple[float, ...]:
    """Return the cost of a slot of each dimension. Default: the slots of a mean graph cost 1 in every dimension.

    Raises:
        ValueError: `cost` does not match the dimensions of `sizes`.

    Example:
        >>> slot_costs([[4, 8], [4, 12]], None)
        (0.25, 0.1)
    """
    table = as_table(sizes)
    if cost is None:
        mean = [float(column.mean()) for column in table.T]
        return tuple(1 / each if each else 0.0 for each in mean)
    if len(cost) != table.shape[1] or min(cost) < 0 or not any(cost):
        raise ValueError(f"cost is {cost}; give {table.shape[1]} numbers that are not negative and not all 0.")
    return cost


def _lengths(wanted: float, smallest: int, align: int) -> list[int]:
    """Return multiples of `align` within a quarter of the target, the closest first."""
    middle = round(wanted / align)
    near = [align * n for n in range(middle - _NEAREST, middle + _NEAREST + 1)]
    near = [n for n in near if n >= smallest and abs(n - wanted) <= max(wanted / 4, align)]
    return sorted(near, key=lambda n: abs(n - wanted)) or [-(-smallest // align) * align]


def _best(
    shapes: Sequence[tuple[int, ...]],
    sample: NDArray[np.int64],
    padding: NDArray[np.bool_],
    progress_bar: bool | None,
    loss: Callable[[Any, Any, Any], Any],
    largest: Callable[[float], float],
) -> list[Shape]:
    """Pack the sample into shapes; return the good trials in the given order.

    The limit of the loss is `largest`, a function of the least loss. In a small dataset a shape is not tried if its
    loss exceeds the limit even with the least number of packs that can hold all graphs.

    Args:
        shapes: Slots of each shape.
        sample: Sizes of each graph.
        padding: Which dimensions have a slot for padding.
        progress_bar: Whether to show a bar.
        loss: Function of the slots, the filled share of the first dimension and the graphs per batch.
        largest: The largest allowed loss, as a function of the least loss.
    """
    slots, total = np.array(shapes), sample.sum(axis=0)
    packs = (-(-total // np.maximum(slots - padding, 1))).max(axis=1)
    bounds = loss(slots, total[0] / np.maximum(slots[:, 0] * packs, 1), len(sample) / np.maximum(packs, 1))
    losses, trials = dict[int, float](), dict[int, Shape]()
    for i in progress(np.argsort(bounds, kind="stable").tolist(), "trying shapes", "shape", progress_bar):
        if len(sample) >= _SAMPLE or bounds[i] <= largest(min(losses.values(), default=math.inf)):
            trials[i] = trial = _try(sample, slots[i], padding)
            losses[i] = loss(slots[i], trial.efficiency[0], trial.graphs_per_batch)
    most = largest(min(losses.values()))
    return [trials[i] for i in sorted(trials) if losses[i] <= most]


def _try(sample: NDArray[np.int64], slots: NDArray[np.int64], padding: NDArray[np.bool_]) -> Shape:
    """Pack the sample; if it is only a part of the dataset, leave out the first packs and those of the last window."""
    limits = tuple((slots - padding).tolist())
    budget = Budget(sizes=limits, num_graphs=len(sample))
    packs = window(sample, budget, window=_WINDOW, generator=torch.Generator().manual_seed(0))
    start, end = 0, len(packs)
    if len(sample) >= _SAMPLE:
        start, end = np.searchsorted(packs.ptr, [_SETTLED, len(sample) - _WINDOW]).tolist()
    used = sample[packs.indices[packs.ptr[start] : packs.ptr[end]]].sum(axis=0)
    # 5 % more than the largest batch of the sample, because the whole dataset has rarer batches.
    most_graphs = -(-int(np.diff(packs.ptr).max()) * 21 // 20)
    return Shape(
        slots=tuple(slots.tolist()),
        num_graphs=most_graphs + 1,
        budget=Budget(sizes=limits, num_graphs=most_graphs),
        efficiency=tuple((used / np.maximum(slots * (end - start), 1)).tolist()),
        graphs_per_batch=float((packs.ptr[end] - packs.ptr[start]) / (end - start)),
        reason="",
    )


def _reason(shape: Shape, target_graphs: float, num_trials: int) -> str:
    """Return the reason for a shape; dimensions without slots, such as edges of point clouds, are left out."""
    rows = list(zip(shape.slots, names(len(shape.slots)), shape.efficiency, strict=True))
    slots = ", ".join(f"{count} {name}" for count, name, _ in rows if count)
    fills = ", ".join(f"{full:.2%} of {name}" for count, name, full in rows if count)
    return (
        f"{slots} and {shape.num_graphs} graphs are filled to {fills} "
        f"at {shape.graphs_per_batch:.1f} graphs a batch: of {num_trials} shapes tried, this is the closest to "
        f"{target_graphs:g} graphs of those that cost at most {_AS_GOOD:.1%} more per graph than the cheapest."
    )

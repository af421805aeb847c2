"""Choosing a few batch shapes for many graphs, and the graphs of each batch, with the least padding."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import torch

from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.packing import Budget, Packs, totals_of_packs, tune, window
from popgeo.packing.sizes import grown
from popgeo.packing.tune import slot_costs

_ALIGN = 8  # slots are multiples of this
_CLASSES = 8  # groups of graphs of about equal size; each shape is for one or more groups
_WORTH = 0.95  # another shape must save a twentieth of the slots, since compiling takes time
_CALL = 0.02  # cost of a call, or of a shape, as a share of the slots of one batch
_NODES = 2048  # of a batch by default: its features still fit in a cache


def choose_shapes(store: FlatStore, batch_size: float | None, most: int) -> list[FixedSizeOptions]:
    """Choose a few batch shapes that fit these graphs with little padding.

    A further shape is added only if it saves a twentieth of the slots.

    Args:
        store: The graphs.
        batch_size: Average number of real graphs in a batch; None means about two thousand nodes.
        most: Largest number of shapes.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1)) for n in [8] * 60 + [900]]
        >>> [sizes.num_nodes for sizes in choose_shapes(FlatStore.from_dataset(graphs), 20, most=2)]
        [168, 904]
    """
    sizes = store.sizes
    order = np.argsort(sizes[:, : len(store.node_types)].sum(1), kind="stable")
    weights = np.array(slot_costs(sizes, None))
    if batch_size is None:
        batch_size = max(1.0, _NODES / max(sizes[:, : len(store.node_types)].sum(1).mean(), 1))
    # Candidate group boundaries: equal counts, and cut-offs before the few largest graphs.
    ends = {len(order) * i // _CLASSES for i in range(1, _CLASSES)} | {len(order) - 2**i for i in range(8)}
    cuts = [0, *sorted(end for end in ends if 0 < end < len(order)), len(order)]
    found = _best(sizes[order], cuts, weights, batch_size, most)
    return [_options(store, sizes[order[start:end]], batch_size) for start, end in found]


def _best(
    sizes: np.ndarray, cuts: Sequence[int], weights: np.ndarray, batch_size: float, most: int
) -> list[tuple[int, int]]:
    """Return the start and end of each group of graphs that gets its own shape, at the least estimated cost."""
    groups = list(combinations(cuts, 2))
    cost = dict(zip(groups, _estimate(sizes, np.array(groups), weights, batch_size), strict=True))

    def total(groups: Sequence[tuple[int, int]]) -> float:
        return sum(cost[group] for group in groups)

    first, *inner, last = cuts
    chosen = [(first, last)]
    for count in range(1, min(most, len(inner) + 1)):
        best = min((list(pairwise((first, *some, last))) for some in combinations(inner, count)), key=total)
        if total(best) > _WORTH * total(chosen):
            break
        chosen = best
    return chosen


def _estimate(sizes: np.ndarray, groups: np.ndarray, weights: np.ndarray, batch_size: float) -> list[float]:
    """Estimate the weighted number of slots in all batches of each group, given by its first graph and its end."""
    start, end = groups.T
    sums = np.concatenate([np.zeros_like(sizes[:1]), sizes.cumsum(0)])
    total, largest = sums[end] - sums[start], np.stack([sizes[a:b].max(0) for a, b in groups])
    num_batches = np.maximum(1, np.round((end - start) / batch_size))[:, None]
    slots = np.maximum(largest, total / num_batches)
    needed = np.ceil((total / np.maximum(slots, 1)).max(1, initial=1))
    # _CALL is the cost of the shape. Of equally expensive cuts it prefers smaller batches, which need less memory.
    return ((needed + _CALL) * (slots @ weights)).tolist()


def _options(store: FlatStore, sizes: np.ndarray, batch_size: float) -> FixedSizeOptions:
    """Return a shape for some graphs: exact sizes for one batch, or tuned sizes for several equally full batches."""
    split = len(store.node_types)
    num_batches = max(1, round(len(sizes) / batch_size))
    if num_batches == 1:
        needed = sizes.sum(0) + (np.arange(sizes.shape[1]) < split)
        slots, num_graphs = [int(-(-each // _ALIGN) * _ALIGN) for each in needed], len(sizes) + 1
    else:
        shape = tune(sizes, len(sizes) / num_batches, align=_ALIGN, num_node_dims=split, progress_bar=False)
        slots, num_graphs = list(shape.slots), shape.num_graphs
    for i in range(1, len(slots)):
        while slots[i] and slots[i] in slots[:i]:  # different, so that the number of a result's rows decides its level
            slots[i] += _ALIGN
    while num_graphs in slots:
        num_graphs += 1
    return FixedSizeOptions.from_sizes(store, slots, num_graphs).with_rows_for(store)


def into_shapes(store: FlatStore, shapes: Sequence[FixedSizeOptions]) -> list[Packs]:
    """Return the batches of each shape, chosen so that they need the fewest slots. Each graph must fit some shape.

    For each subset of the shapes, each graph is assigned to the smallest shape that fits it, and batches are moved to
    a smaller shape if they fit. The cheapest subset is used.
    """
    sizes, axes = store.sizes, store.size_axes
    if not len(sizes):
        return [Packs.from_lists([]) for _ in shapes]
    weights = np.array(slot_costs(np.array([[options.slots(axis) for axis in axes] for options in shapes]), None))
    cost = np.array([weights @ [options.slots(axis) for axis in axes] for options in shapes])
    cost = cost + _CALL * cost.max()
    limits = [options.limits(axes) for options in shapes]
    fits = np.stack([(sizes <= limit).all(1) for limit in limits])  # [num_shapes, num_graphs]
    by_cost = np.argsort(cost, kind="stable")
    plans: list[dict[int, Packs]] = []
    for count in range(1, len(shapes) + 1):
        for used in combinations(by_cost.tolist(), count):
            if fits[list(used)].any(0).all():
                home = np.array(used)[fits[list(used)].argmax(0)]
                plans.append(_plan(sizes, home, limits, shapes, by_cost))
    assert plans, "the shapes hold every graph"
    best = min(plans, key=lambda plan: sum(len(packs) * cost[i] for i, packs in plan.items()))
    return [best.get(i, Packs.from_lists([])) for i in range(len(shapes))]


def _plan(
    sizes: np.ndarray, home: np.ndarray, limits: Any, shapes: Sequence[FixedSizeOptions], by_cost: np.ndarray
) -> dict[int, Packs]:
    """Pack the graphs of each shape, and move each batch to the smallest shape that fits it."""
    moved: dict[int, list[Packs]] = {}
    for i in np.unique(home).tolist():
        graphs = np.flatnonzero(home == i)
        budget = Budget(sizes=tuple(limits[i].tolist()), num_graphs=shapes[i].num_graphs - 1)
        packs = window(sizes[graphs], budget, generator=torch.Generator().manual_seed(0))
        packs = Packs(graphs[packs.indices], packs.ptr)
        totals, counts = totals_of_packs(sizes, packs.indices, packs.ptr), np.diff(packs.ptr)
        into = np.full(len(packs), i)
        for j in by_cost[::-1].tolist():
            into[(totals <= limits[j]).all(1) & (counts < shapes[j].num_graphs)] = j
        for j in np.unique(into).tolist():
            moved.setdefault(j, []).append(packs.take(np.flatnonzero(into == j)))
    return {j: Packs.concatenate(parts) for j, parts in moved.items()}


def grown_shape(options: FixedSizeOptions, store: FlatStore) -> FixedSizeOptions:
    """Return a shape that fits the largest of these graphs, enlarged by `grown` to multiples of eight if needed."""
    axes = store.size_axes
    slots, limits = [options.slots(axis) for axis in axes], options.limits(axes).tolist()
    for i, size in enumerate(grown(limits, store.sizes.max(0))):
        if size != limits[i]:
            slots[i] = -(-(size + slots[i] - limits[i]) // _ALIGN) * _ALIGN
    made = FixedSizeOptions.from_sizes(store, slots, options.num_graphs)
    return replace(options, num_nodes=made.num_nodes, num_edges=made.num_edges)

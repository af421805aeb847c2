"""Drawing of edges of each row: all, some with or without replacement, by weight, or the latest.

The NumPy functions here are the reference; `csrc/draw.cpp` makes the same choices.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from popgeo.native import library
from popgeo.random_numbers import Words, below, keys_of, log, unit
from popgeo.sampling.compressed_graph import CompressedGraph

Places = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The rule that chooses the edges of a row.

    Args:
        number: The largest number of edges of a row; -1 means all.
        replace: Whether an edge may be taken again. Then every row with an edge has `number` edges.
        last: Whether to take the latest edges instead of random edges.
        key: The key of the random numbers; it differs between edge types.
    """

    number: int
    replace: bool
    last: bool
    key: int


def draw_edges(
    graph: CompressedGraph, nodes: Tensor, first: int, not_after: Tensor | None, draw: Draw
) -> tuple[Tensor, Tensor]:
    """Choose edges of some rows.

    Args:
        graph: The graph.
        nodes: The rows, which may repeat. int64 [num_nodes]
        first: The number of `nodes[0]` in the sample; number `first + i` selects the random numbers of row i.
        not_after: The latest allowed time of each row; None without times. int64 [num_nodes]
        draw: The rule of choice.

    Returns:
        The start of the edges of each row, and the end, int64 [num_nodes + 1]; the places of the chosen edges in
        `graph.col`, row after row, int64 [num_chosen].

    Example:
        >>> graph = CompressedGraph.from_edge_index(torch.tensor([[1, 2, 0, 2], [0, 0, 2, 1]]), 3)
        >>> every = Draw(number=-1, replace=False, last=False, key=0)
        >>> [tensor.tolist() for tensor in draw_edges(graph, torch.tensor([2, 0]), 0, None, every)]
        [[0, 1, 3], [3, 0, 1]]
    """
    count, choose = library.packed("popgeo_count_edges"), library.packed("popgeo_choose_edges")
    if count is None or choose is None:
        return _draw_edges(graph, nodes.numpy(), first, None if not_after is None else not_after.numpy(), draw)
    weight = graph.weight
    ptr = torch.empty(len(nodes) + 1, dtype=torch.int64)
    limits = (None, None) if not_after is None or graph.time is None else (graph.time, not_after)
    addresses = [library.address(tensor) for tensor in (graph.rowptr, *limits, weight, nodes)]
    sizes = (len(nodes), first, graph.rowptr.element_size(), 0 if weight is None else weight.element_size())
    choices = (draw.number, draw.replace, draw.last, torch.get_num_threads())
    total = count(struct.pack("7q8qQ", *addresses, ptr.data_ptr(), 0, *sizes, *choices, draw.key))
    places = torch.empty(total, dtype=torch.int64)
    if choose(struct.pack("7q8qQ", *addresses, ptr.data_ptr(), places.data_ptr(), *sizes, *choices, draw.key)):
        raise MemoryError("No memory to draw from the longest row of neighbors.")
    return ptr, places


def _draw_edges(
    graph: CompressedGraph, nodes: Places, first: int, not_after: Places | None, draw: Draw
) -> tuple[Tensor, Tensor]:
    rowptr = graph.rowptr.numpy()
    begin, end = rowptr[nodes].astype(np.int64), rowptr[nodes + 1].astype(np.int64)
    if not_after is not None and graph.time is not None:
        time, limit = graph.time.numpy(), not_after
        end = first_place(begin, end, lambda places, rows: time[places] > limit[rows])
    keys = keys_of(draw.key, np.arange(first, first + len(nodes)))
    if graph.weight is not None:
        counts, places = _weighted(graph.weight.numpy(), begin, end, keys, draw)
    else:
        if draw.last and draw.number >= 0:
            begin = np.maximum(begin, end - draw.number)
        counts, places = _uniform(begin, end, keys, draw)
    ptr = np.concatenate([[0], np.cumsum(counts)])
    return torch.from_numpy(ptr.astype(np.int64)), torch.from_numpy(places)


def first_place(begin: Places, end: Places, is_there: Callable[[Places, Places], NDArray[np.bool_]]) -> Places:
    """Return the first place of each row that satisfies a condition, or its end, by binary search in all rows at once.

    Args:
        begin: The first place of each row. [num_rows]
        end: The place after the last place of each row. [num_rows]
        is_there: The condition, for places and their rows. All places after a place that satisfies it do, too.

    Example:
        >>> first_place(np.array([0, 3]), np.array([3, 5]), lambda places, rows: places**2 > np.array([3, 99])[rows])
        array([2, 5])
    """
    low, high = begin.copy(), end.copy()
    while (rows := np.flatnonzero(low < high)).size:
        middle = (low[rows] + high[rows]) // 2
        there = is_there(middle, rows)
        high[rows[there]] = middle[there]
        low[rows[~there]] = middle[~there] + 1
    return low


def _every(begin: Places, counts: Places) -> tuple[Places, Places]:
    """Return the row of each place, and the places, for the ranges of several rows."""
    row = np.repeat(np.arange(len(begin)), counts)
    starts = np.cumsum(counts) - counts
    return row, begin[row] + np.arange(len(row)) - starts[row]


def _uniform(begin: Places, end: Places, keys: Words, draw: Draw) -> tuple[Places, Places]:
    degree = end - begin
    if draw.number < 0 or (not draw.replace and bool((degree <= draw.number).all())):
        return degree, _every(begin, degree)[1]
    if draw.replace:
        counts = np.where(degree > 0, draw.number, 0)
        row, number = _every(np.zeros_like(begin), counts)
        drawn = below(keys[row], number.astype(np.uint64), degree[row].astype(np.uint64))
        return counts, begin[row] + drawn.astype(np.int64)
    counts = np.minimum(degree, draw.number)
    row, places = _every(begin, counts)
    some = degree > draw.number
    places[some[row]] = (begin[some, None] + _subsets(degree[some], draw.number, keys[some])).ravel()
    return counts, places


def _subsets(degree: Places, number: int, keys: Words) -> Places:
    """Return `number` different places below each degree, each set with the same probability, [num_rows, number].

    The algorithm is Floyd's (1987, doi 10.1145/30401.315746).
    """
    chosen = np.empty((len(degree), number), np.int64)
    for i in range(number):
        largest = degree - number + i
        place = below(keys, np.full(len(keys), i, np.uint64), (largest + 1).astype(np.uint64)).astype(np.int64)
        taken = (chosen[:, :i] == place[:, None]).any(axis=1)
        chosen[:, i] = np.where(taken, largest, place)
    return chosen


def _weighted(
    weight: NDArray[np.floating], begin: Places, end: Places, keys: Words, draw: Draw
) -> tuple[Places, Places]:
    """Draw edges in proportion to their weights; edges of weight 0 are never drawn."""
    row, places = _every(begin, end - begin)
    row, places = row[weight[places] > 0], places[weight[places] > 0]
    degree = np.bincount(row, minlength=len(begin))
    if draw.number < 0:
        return degree, places
    if draw.replace:
        return _weighted_with_replacement(weight, places, degree, keys, draw.number)
    # Take the edges with the smallest exponential variates of rate `weight`: the same as drawing one after the other
    # (Efraimidis and Spirakis 2006, doi 10.1016/j.ipl.2005.11.003).
    waits = -log(unit(keys[row], (places - begin[row]).astype(np.uint64))) / weight[places].astype(np.float64)
    waits = np.where((degree <= draw.number)[row], 0.0, waits)  # a row with all its edges stays in order
    order = np.lexsort((waits, row))
    rank = np.arange(len(row)) - (np.cumsum(degree) - degree)[row]
    return np.minimum(degree, draw.number), places[order][rank < draw.number]


def _weighted_with_replacement(
    weight: NDArray[np.floating], places: Places, degree: Places, keys: Words, number: int
) -> tuple[Places, Places]:
    chosen = []
    ends = np.cumsum(degree)
    for i in np.flatnonzero(degree):
        candidates = places[ends[i] - degree[i] : ends[i]]
        summed = np.cumsum(weight[candidates].astype(np.float64))
        points = unit(keys[[i] * number], np.arange(number, dtype=np.uint64)) * summed[-1]
        chosen.append(candidates[np.searchsorted(summed, points, side="right").clip(max=len(candidates) - 1)])
    return np.where(degree > 0, number, 0), np.concatenate([np.empty(0, np.int64), *chosen])

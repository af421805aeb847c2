"""The linear program of packing: the smallest number of packs if fractions of packs are allowed.

A column is a kind of pack, a row a size. The list of all kinds would be too long, so columns are generated: the dual
price of a size is the worth of a graph of this size, and a knapsack finds the kind of pack with the largest worth
(Gilmore and Gomory 1961, doi 10.1287/opre.9.6.849).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from popgeo.packing.size_plan import Histogram

# Prices are whole multiples of 2**-30, so that knapsack values, and with them the bound, are exact.
_PRICE = 1 << 30
_MOST_ROUNDS = 200
_MIXED_KINDS = 16


@dataclass(frozen=True, kw_only=True)
class LinearSolution:
    """The solution of the linear program.

    Args:
        kinds: Graphs of each size in each kind of pack. [num_sizes, num_kinds]
        amounts: The number of packs of each kind, fractions allowed. [num_kinds]
        bound: A lower bound of the number of packs, proven by exact arithmetic on the prices.
    """

    kinds: np.ndarray
    amounts: np.ndarray
    bound: int


def solve_fractional(sizes: Histogram) -> LinearSolution:
    """Cover every graph by as few packs as possible, fractions of packs allowed.

    Example:
        >>> half_packs = Histogram(sizes=(2,), counts=(5,), capacity=5, num_graphs=9, bound=2)
        >>> solution = solve_fractional(half_packs)
        >>> float(solution.amounts.sum()), solution.bound
        (2.5, 3)
    """
    knapsack = Knapsack(sizes)
    demand = np.array(sizes.counts, np.int64)
    kinds = _first_kinds(sizes, knapsack)
    bound = sizes.bound
    for _ in range(_MOST_ROUNDS):
        matrix = np.array(sorted(kinds), np.int64).T
        result = _least_cost(np.ones(matrix.shape[1]), -matrix, -demand)
        if bound >= math.ceil(result.fun - 1e-6):
            break
        prices = np.floor(np.maximum(-result.ineqlin.marginals, 0) * _PRICE).astype(np.int64)
        best, candidates = knapsack.solve(prices)
        # No kind of pack is worth more than `best`, so prices divided by `best` are feasible. The worth of all graphs
        # divided by `best` is then a lower bound of the number of packs (Farley 1990).
        worth = sum(price * count for price, count in zip(prices.tolist(), sizes.counts, strict=True))
        bound = max(bound, -(-worth // best))
        before = len(kinds)
        kinds.update(candidates)
        if len(kinds) == before:
            break
    return LinearSolution(kinds=matrix, amounts=_evened_out(sizes, matrix, result.x), bound=bound)


def _least_cost(costs: np.ndarray, rows: np.ndarray, limits: np.ndarray) -> Any:
    """Return SciPy's solution of the linear program: the amounts with the least cost within limits."""
    from scipy.optimize import linprog
    from scipy.sparse import csc_array

    return linprog(costs, A_ub=csc_array(rows), b_ub=limits, method="highs")


def _evened_out(sizes: Histogram, kinds: np.ndarray, amounts: np.ndarray) -> np.ndarray:
    """Reduce the variance of the packs' mean sizes, if it exceeds random batches; the number of packs stays the same.

    Several plans may need the same number of packs. Some have batches of small graphs and batches of large graphs,
    which biases training steps. In random batches, the variance of the mean size times the number of graphs is the
    variance of one graph.
    """
    values, counts = np.array(sizes.sizes), np.array(sizes.counts)
    mean = np.average(values, weights=counts)
    variance = np.average((values - mean) ** 2, weights=counts)
    num_graphs = kinds.sum(axis=0)
    spread = num_graphs * (values @ kinds / num_graphs - mean) ** 2  # [num_kinds]
    if spread @ amounts <= variance * amounts.sum():
        return amounts
    rows = np.vstack([-kinds, np.ones(kinds.shape[1])])
    limits = np.append(-counts, amounts.sum() + 1e-4)
    result = _least_cost(spread, rows, limits)
    return result.x if result.status == 0 else amounts


def _first_kinds(sizes: Histogram, knapsack: "Knapsack") -> set[tuple[int, ...]]:
    """Return the first kinds of pack: one size alone, and full packs with sizes as mixed as in the data.

    Mixed kinds have two advantages. Fewer rounds are needed, and packs of the final plan are about as random as batches
    drawn from the data. Prices alone would lead to packs of one or two sizes.
    """
    num_sizes = len(sizes.sizes)
    counted = zip(sizes.sizes, sizes.counts, strict=True)
    alone = [min(sizes.capacity // size if size else count, sizes.num_graphs, count) for size, count in counted]
    kinds = {tuple(kind) for kind in np.diag(alone).tolist()}
    mean = sum(s * c for s, c in zip(sizes.sizes, sizes.counts, strict=True)) / sum(sizes.counts)
    if mean == 0:
        return kinds
    rng = np.random.default_rng(0)
    share = np.array(sizes.counts) / sum(sizes.counts)
    draws = rng.choice(num_sizes, size=(_MIXED_KINDS * num_sizes, int(sizes.capacity / mean) + 1), p=share)
    draws[:, 0] = np.repeat(np.arange(num_sizes), _MIXED_KINDS)  # so that rare sizes are in some kind
    # The last two or three graphs of a pack are not drawn but chosen to fill it.
    room = sizes.capacity - np.cumsum(np.array(sizes.sizes)[draws], axis=1)
    drawn = (room >= min(1.5 * mean, sizes.capacity)) & (np.arange(draws.shape[1]) < max(sizes.num_graphs - 3, 0))
    share_of_size = np.zeros(sizes.capacity + 1)
    share_of_size[list(sizes.sizes)] = share
    for row, keep in zip(draws, drawn, strict=True):
        kind = np.bincount(row[keep], minlength=num_sizes)
        left = sizes.capacity - int(kind @ sizes.sizes)
        other = left - np.array(sizes.sizes)
        pairs = np.where(other >= 0, share * share_of_size[np.maximum(other, 0)], 0)
        if pairs.any() and kind.sum() + 2 <= sizes.num_graphs:
            first = rng.choice(num_sizes, p=pairs / pairs.sum())
            kind[first] += 1
            kind[sizes.sizes.index(int(other[first]))] += 1
        else:
            kind += knapsack.fill(left, kind.sum())
        kinds.add(tuple(kind.tolist()))
    return kinds


class Knapsack:
    """A search for the kinds of pack with the largest worth at given prices, by dynamic programming over the room."""

    def __init__(self, sizes: Histogram) -> None:
        self.sizes = np.array(sizes.sizes, np.int64)
        self.capacity, self.num_graphs = sizes.capacity, sizes.num_graphs
        before = np.arange(self.capacity + 1) - self.sizes[:, None]
        self.before = np.where(before < 0, self.capacity + 1, before)  # [num_sizes, capacity + 1]
        self.full = self._table(self.sizes)

    def _table(self, prices: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Compute the knapsack table: the best worth of each room, and the last added size per round (-1: none)."""
        worth = np.zeros(self.capacity + 2, np.int64)
        worth[-1] = np.iinfo(np.int64).min // 2
        last = []
        for _ in range(self.num_graphs):
            with_one_more = worth[self.before] + prices[:, None]
            choice = with_one_more.argmax(axis=0)
            value = np.take_along_axis(with_one_more, choice[None], axis=0)[0]
            better = value > worth[:-1]
            if not better.any():
                break
            last.append(np.where(better, choice, -1))
            worth[:-1] = np.where(better, value, worth[:-1])
        return worth[:-1], last

    def _trace(self, last: list[np.ndarray], room: int, num_graphs: int) -> np.ndarray:
        kind = np.zeros(len(self.sizes), np.int64)
        for choice in reversed(last[:num_graphs]):
            i = int(choice[room])
            if i >= 0:
                kind[i] += 1
                room -= int(self.sizes[i])
        return kind

    def fill(self, room: int, taken: int) -> np.ndarray:
        """Return the fewest graphs that fill the room as far as possible, [num_sizes]."""
        return self._trace(self.full[1], room, self.num_graphs - taken)

    def solve(self, prices: np.ndarray) -> tuple[int, list[tuple[int, ...]]]:
        """Return the worth of the best kind of pack, and the best kind with each size, if it is worth a new column."""
        worth, last = self._table(prices)
        kinds = []
        for i, size in enumerate(self.sizes.tolist()):
            kind = self._trace(last, self.capacity - size, self.num_graphs - 1)
            kind[i] += 1
            if kind @ prices > _PRICE + 8:
                kinds.append(tuple(kind.tolist()))
        return int(worth[-1]), kinds

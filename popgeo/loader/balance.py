"""Load balancing between ranks: the batches that ranks work on in one step cost nearly the same."""

import heapq
from dataclasses import dataclass

import numpy as np
import torch

from popgeo.loader.shard import in_whole_steps
from popgeo.packing import Budget, Packs

_UNEQUAL = 0.01  # allowed excess of the slowest rank over the mean, before batches are regrouped


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphWork:
    """The cost and size of each graph, and the limits of a batch.

    Args:
        costs: Cost of each graph, in any unit. [num_graphs]
        sizes: Sizes of each graph. [num_graphs, num_dimensions]
        budget: Limits of a batch.
    """

    costs: np.ndarray
    sizes: np.ndarray
    budget: Budget

    def of_packs(self, packs: Packs) -> np.ndarray:
        """Return the cost of each pack, float64 [num_packs]."""
        running = np.zeros(len(packs.indices) + 1)
        np.cumsum(self.costs.take(packs.indices), out=running[1:])
        return running[packs.ptr[1:]] - running[packs.ptr[:-1]]

    def slowest(self, packs: Packs, together: int) -> np.ndarray:
        """Return, for each step, by which share the most expensive pack exceeds the mean cost, [num_steps]."""
        costs = self.of_packs(packs).reshape(-1, together)
        mean = costs.mean(axis=1)
        return np.divide(costs.max(axis=1), mean, out=np.ones_like(mean), where=mean > 0) - 1


def balanced(
    packs: Packs, work: GraphWork, together: int, generator: torch.Generator, drop_last: bool = False
) -> Packs:
    """Order packs so that the packs of each step cost nearly the same.

    Packs are sorted by cost and cut into steps. Steps, and the packs of each step, then come in a random order. Packs
    that do not fill a whole step are pooled with the cheapest packs, and their graphs are regrouped at equal cost.

    Args:
        packs: Packs within the budget.
        work: Costs of graphs.
        together: Packs of one step, for all ranks.
        generator: Source of the order.
        drop_last: Whether packs that are too many for whole steps are dropped.

    Example:
        >>> budget = Budget(sizes=(2,), num_graphs=2)
        >>> work = GraphWork(costs=np.array([5, 1, 5, 1]), sizes=np.ones((4, 1)), budget=budget)
        >>> packs = Packs.from_lists([[0], [1], [2], [3]])
        >>> balanced(packs, work, 2, torch.Generator().manual_seed(0)).indices.reshape(2, 2) % 2
        array([[1, 1],
               [0, 0]])
    """
    packs = packs.take(np.argsort(work.of_packs(packs), kind="stable"))
    too_many = len(packs) % together
    packs = packs[too_many:] if drop_last else _with_an_equal_beginning(packs, work, together, too_many)
    steps = np.arange(len(packs)).reshape(-1, together)
    steps = steps[torch.randperm(len(steps), generator=generator).numpy()]
    within = torch.rand(steps.shape, generator=generator).argsort(dim=1).numpy()
    return packs.take(np.take_along_axis(steps, within, axis=1).ravel())


def _with_an_equal_beginning(packs: Packs, work: GraphWork, together: int, too_many: int) -> Packs:
    """Return packs in whole steps, sorted by cost. The first packs are regrouped if their costs differ too much."""
    pooled = min(len(packs), too_many + together)
    if not too_many and (not len(packs) or work.slowest(packs[:pooled], together).max() < _UNEQUAL):
        return packs
    found = [in_whole_steps(packs, together)]
    for number in (1, 2, 3):
        if pooled <= number * together:
            dealt = _dealt_out(packs[:pooled].indices, work, number * together)
            if dealt is not None:
                dealt = dealt.take(np.argsort(work.of_packs(dealt), kind="stable"))
                found.append(Packs.concatenate([dealt, packs[pooled:]]))
                if work.slowest(dealt, together).max() < _UNEQUAL:
                    break
    return min(found, key=lambda packs: work.slowest(packs, together).max())


def _dealt_out(ids: np.ndarray, work: GraphWork, number: int) -> Packs | None:
    """Group graphs into packs of nearly equal cost; return None if a graph fits no pack or a pack stays empty.

    Graphs are assigned in descending order of cost, each to the cheapest pack with room. (Graham 1969,
    doi 10.1137/0117039, where packs have no budget.)
    """
    ids = ids[np.argsort(-work.costs.take(ids), kind="stable")]
    if len(ids) < number:
        return None
    contents: list[list[int]] = [[] for _ in range(number)]
    left = np.tile(np.array(work.budget.sizes, np.int64), (number, 1))
    heap = [(0.0, pack) for pack in range(number)]
    for graph, cost, size in zip(ids.tolist(), work.costs[ids].tolist(), work.sizes[ids], strict=True):
        passed = []
        while heap:
            spent, pack = heapq.heappop(heap)
            if len(contents[pack]) < work.budget.num_graphs and (left[pack] >= size).all():
                break
            passed.append((spent, pack))
        else:
            return None
        contents[pack].append(graph)
        left[pack] -= size
        for entry in (*passed, (spent + cost, pack)):
            heapq.heappush(heap, entry)
    return Packs.from_lists(contents)

"""Plans as tables, for figures and reports."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from popgeo.packing.efficiency import efficiency, lower_bound
from popgeo.packing.packs import Budget, Packs, totals_of_packs
from popgeo.packing.sizes import as_table, names

if TYPE_CHECKING:
    import pandas as pd

_SEED = 0  # of the sweep over lengths, so that figures are reproducible


def summary(plans: Mapping[str, Packs], sizes: ArrayLike, budget: Budget) -> "pd.DataFrame":
    """Return a table that compares plans, one row per plan.

    Args:
        plans: A name for each plan.
        sizes: Sizes of each graph, as for packing. [num_graphs, num_dims] or [num_graphs]
        budget: The capacity of a pack.

    Returns:
        Columns `strategy`; `num_packs` and `lower_bound`; the used share, 0 to 1, of each dimension (`nodes`, `edges`)
        and of `graphs`; `binds`, the fullest of these; `graphs_per_pack`; `variance_ratio`, see the function of this
        name; `num_skipped`.

    Example:
        >>> from popgeo.packing import stream
        >>> budget = Budget(sizes=(8,), num_graphs=4)
        >>> table = summary({"stream": stream([4, 4, 3], budget)}, [4, 4, 3], budget)
        >>> table[["strategy", "num_packs", "nodes"]].to_dict("records")
        [{'strategy': 'stream', 'num_packs': 2, 'nodes': 0.6875}]
    """
    rows = []
    for name, packs in plans.items():
        found = efficiency(packs, sizes, budget)
        rows.append(
            {
                "strategy": name,
                "num_packs": found.num_packs,
                "lower_bound": found.lower_bound,
                **dict(zip(names(len(found.sizes)), found.sizes, strict=True)),
                "graphs": found.graphs,
                "binds": found.binds,
                "graphs_per_pack": packs.num_graphs / max(len(packs), 1),
                "variance_ratio": variance_ratio(packs, sizes),
                "num_skipped": len(packs.skipped),
            }
        )
    import pandas as pd

    return pd.DataFrame(rows)


def fill(packs: Packs, sizes: ArrayLike, budget: Budget) -> "pd.DataFrame":
    """Return the used share of every pack, one row per pack, in order.

    Args:
        packs: A plan.
        sizes: Sizes of each graph, as for packing. [num_graphs, num_dims] or [num_graphs]
        budget: The capacity of a pack; pass the slots of a batch to count its padding, too.

    Returns:
        A column, 0 to 1, for each dimension (`nodes`, `edges`) and for `graphs`.

    Example:
        >>> fill(Packs.from_lists([[0, 1], [2]]), [4, 4, 2], Budget(sizes=(8,), num_graphs=2))["nodes"].tolist()
        [1.0, 0.25]
    """
    used = totals_of_packs(as_table(sizes), packs.indices, packs.ptr) / np.maximum(budget.sizes, 1)
    import pandas as pd

    table = pd.DataFrame(used, columns=list(names(len(budget.sizes))))
    return table.assign(graphs=np.diff(packs.ptr) / budget.num_graphs)


def mean_sizes(packs: Packs, sizes: ArrayLike) -> NDArray[np.float64]:
    """Return the mean first size (nodes) of the graphs of each pack, float64 [num_packs].

    Example:
        >>> mean_sizes(Packs.from_lists([[0, 1], [2]]), [[4, 9], [6, 9], [2, 9]]).tolist()
        [5.0, 2.0]
    """
    return totals_of_packs(as_table(sizes), packs.indices, packs.ptr)[:, 0] / np.maximum(np.diff(packs.ptr), 1)


def variance_ratio(packs: Packs, sizes: ArrayLike) -> float:
    """Return the variance of the mean size of packs, relative to packs of independently drawn graphs.

    1 is as random as plain shuffling. Above 1, each pack has similar sizes, so gradients are biased from batch to
    batch. Below 1, packs resemble each other more than by chance. NaN means that sizes or packs do not vary.

    Example:
        >>> sizes = np.arange(10_000) % 10
        >>> shuffled = Packs.from_lists(np.random.default_rng(0).permutation(10_000).reshape(-1, 10))
        >>> alike = Packs.from_lists(np.argsort(sizes).reshape(-1, 10))
        >>> round(variance_ratio(shuffled, sizes), 1), round(variance_ratio(alike, sizes), 1)
        (1.0, 10.0)
    """
    packed = as_table(sizes)[packs.indices, 0]
    counts = np.diff(packs.ptr)
    if len(packs) < 2 or not packed.var():
        return float("nan")
    return float(mean_sizes(packs, sizes).var() / (packed.var() * (1 / counts[counts > 0]).mean()))


def sweep(
    sizes: ArrayLike, lengths: Sequence[int], strategies: Mapping[str, Callable[..., Packs]], *, num_graphs: int
) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """Return the fill of packs for different lengths, in the first dimension alone.

    Args:
        sizes: Sizes of each graph; only the first dimension counts. [num_graphs, num_dims] or [num_graphs]
        lengths: Capacities of a pack in the first dimension.
        strategies: Packing functions by name.
        num_graphs: The largest number of graphs of a pack.

    Returns:
        One row per strategy and length: `strategy`, `num_nodes`, `efficiency`. And the upper bound for any strategy:
        `num_nodes`, `efficiency`.

    Example:
        >>> from popgeo.packing import stream
        >>> found, bound = sweep([4, 2, 4, 2], [5, 6], {"stream": stream}, num_graphs=9)
        >>> found["efficiency"].tolist(), bound["efficiency"].tolist()
        ([0.6, 1.0], [0.8, 1.0])
    """
    first = as_table(sizes)[:, 0]
    rows, bounds = [], []
    for length in lengths:
        budget = Budget(sizes=(length,), num_graphs=num_graphs)
        bounds.append(first.sum() / (length * max(lower_bound(first, budget), 1)))
        for name, strategy in strategies.items():
            packs = strategy(first, budget, generator=torch.Generator().manual_seed(_SEED))
            rows.append((name, length, efficiency(packs, first, budget).sizes[0]))
    import pandas as pd

    bound = pd.DataFrame({"num_nodes": list(lengths), "efficiency": bounds})
    return pd.DataFrame(rows, columns=["strategy", "num_nodes", "efficiency"]), bound

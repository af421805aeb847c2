"""How the sizes of a batch are found: from a dataset, from the sizes of its graphs, by trial, or from a loader."""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from popgeo.data.flat_store import FlatStore
from popgeo.data.open_dataset import OpenDataset
from popgeo.packing import tune

Self = TypeVar("Self", bound="FoundSizes")


class FoundSizes:
    """The ways to make `FixedSizeOptions` without giving numbers."""

    @classmethod
    def from_dataset(
        cls: type[Self],
        dataset: Any,
        batch_size: int,
        sample_limit: int | None = None,
        progress_bar: bool | None = None,
        **values: Any,
    ) -> Self:
        """The smallest sizes that hold any `batch_size - 1` graphs of a dataset and the padding.

        Args:
            dataset: What `FixedSizeDataLoader` takes.
            batch_size: Graphs of a batch, the padding graph included, as in PopTorch Geometric.
            sample_limit: Measure only that many graphs; later ones may then not fit.
            progress_bar: Whether to show a bar if it lasts longer than a second; None means at a terminal and in
                notebooks. Measuring a dataset that lies in memory takes milliseconds.
            values: Pad values, as `FixedSizeOptions` takes them.

        Example:
            >>> import torch
            >>> from popgeo.data import FixedSizeOptions
            >>> from torch_geometric.data import Data
            >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, 2 * n, dtype=torch.long)) for n in (2, 5)]
            >>> options = FixedSizeOptions.from_dataset(graphs, batch_size=4)
            >>> options.num_nodes, options.num_edges, options.num_graphs
            (16, 31, 4)
        """
        if batch_size < 2:
            raise ValueError(f"batch_size is {batch_size}; it counts the padding graph, so it must be 2 or more.")
        if not isinstance(dataset, FlatStore) and sample_limit is not None:
            dataset = [dataset[i] for i in range(min(sample_limit, len(dataset)))]
        opened = OpenDataset.of(dataset, progress_bar=progress_bar)
        return cls.worst_case(opened.store, opened.sizes.values[:sample_limit], batch_size, **values)

    @classmethod
    def worst_case(cls: type[Self], store: FlatStore, sizes: np.ndarray, batch_size: int, **values: Any) -> Self:
        """Sizes that hold any `batch_size - 1` graphs of the given sizes and the padding.

        Args:
            store: Says which types there are.
            sizes: Nodes and edges of each graph. int64 [num_graphs, num_dimensions]
            batch_size: Graphs of a batch, the padding graph included.
            values: Pad values, as `FixedSizeOptions` takes them.
        """
        largest = sizes.max(axis=0)
        # Without any edge in the dataset nothing needs an edge slot.
        worst = np.where(largest > 0, largest * (batch_size - 1) + 1, 0)
        return cls.from_sizes(store, worst, batch_size, **values)

    @classmethod
    def from_sizes(cls: type[Self], store: FlatStore, sizes: Iterable[int], num_graphs: int, **values: Any) -> Self:
        """Options from one number for each of `store.size_axes`; nodes are raised to 1 if nothing has any."""
        counts = [int(size) for size in sizes]
        split = len(store.node_types)
        nodes: Any = dict(zip(store.node_types, (max(1, n) for n in counts[:split]), strict=True))
        edges: Any = dict(zip(store.edge_types, counts[split:], strict=True))
        sizes = (nodes, edges) if store.is_hetero else (nodes[None], edges[None])
        return cls(*sizes, num_graphs, **values)  # type: ignore[call-arg]  # of FixedSizeOptions

    @classmethod
    def tune(
        cls: type[Self],
        dataset: Any,
        target_graphs: float,
        *,
        align: int = 8,
        cost: tuple[float, ...] | None = None,
        verbose: bool = True,
        **values: Any,
    ) -> Self:
        """The sizes that `FixedSizeStrategy.Window` fills best, at about that many real graphs a batch.

        Args:
            dataset: What `FixedSizeDataLoader` takes.
            target_graphs: Real graphs of a batch, on average.
            align: Nodes and edges of a batch are multiples of this.
            cost: What a node and an edge cost, as (a, b) in `a * nodes + b * edges`; see `popgeo.packing.tune`.
            verbose: Whether to print what was chosen and why, and to show a bar if it lasts.
            values: Pad values and `num_rows`, as `FixedSizeOptions` takes them. For graph attributes with rows of
                their own, the default of `num_rows` is the number that the graphs with most rows need together.

        Raises:
            ValueError: see `popgeo.packing.tune`.

        Example:
            >>> from popgeo.data import FixedSizeOptions
            >>> from torch_geometric.data import Data
            >>> graphs = [Data(num_nodes=n) for n in (9, 12, 15)] * 100
            >>> options = FixedSizeOptions.tune(graphs, target_graphs=8, verbose=False)
            >>> options.num_nodes % 8, options.num_edges
            (0, 0)
        """
        bar = None if verbose else False
        opened = OpenDataset.of(dataset, progress_bar=bar)
        store, sizes = opened.store, opened.sizes.values
        split = len(store.node_types)
        shape = tune(sizes, target_graphs, align=align, cost=cost, num_node_dims=split, progress_bar=bar)
        if verbose:
            labels = [axis.label for axis in store.size_axes]
            print(re.sub(r"\bsize_(\d+)", lambda found: labels[int(found[1])], shape.reason))
        found = cls.from_sizes(store, shape.slots, shape.num_graphs, **values)
        return found.with_rows_for(store, each_once=True) if opened.holds_all else found  # type: ignore[attr-defined]

    @classmethod
    def from_loader(cls: type[Self], loader: Iterable[Any], sample_limit: int = 1000, **values: Any) -> Self:
        """The largest sizes seen in up to `sample_limit` batches of a loader, and one more of each for padding.

        Raises:
            ValueError: the loader is empty.
        """
        nodes: dict[Any, int] = {}
        edges: dict[Any, int] = {}
        num_graphs = 0
        for batch in islice(loader, sample_limit):
            for store in batch.node_stores:
                nodes[store._key] = max(nodes.get(store._key, 1), int(store.num_nodes or 0) + 1)
            for store in batch.edge_stores:
                edges[store._key] = max(edges.get(store._key, 1), int(store.num_edges or 0) + 1)
            num_graphs = max(num_graphs, int(getattr(batch, "num_graphs", 1)) + 1)
        if not num_graphs:
            raise ValueError("The loader yields no batch, so there is nothing to measure. Pass one that does.")
        sizes = (nodes[None], edges[None]) if None in nodes else (nodes, edges)
        return cls(*sizes, num_graphs, **values)  # type: ignore[call-arg]  # of FixedSizeOptions


for _name in ("from_dataset", "from_sizes", "from_loader", "worst_case", "tune"):
    # Python's error for a missing argument then names the class that users know.
    vars(FoundSizes)[_name].__func__.__qualname__ = f"FixedSizeOptions.{_name}"


def grown(sizes: Sequence[int], needed: Sequence[int] | np.ndarray) -> list[int]:
    """Sizes that hold what is needed: half as much again of each size that must grow, because more may come.

    Args:
        sizes: The sizes so far, one per kind of slots.
        needed: What must fit, one per kind of slots.

    Example:
        >>> grown([10, 40], needed=[20, 30])
        [30, 40]
    """
    return [int(n) * 3 // 2 if n > size else size for size, n in zip(sizes, needed, strict=True)]

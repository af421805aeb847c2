"""A dataset as it was found: its columns, whether they hold all of its graphs, and if not, why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from popgeo.data.axes import Levels
from popgeo.data.flat_store import FlatStore, why_not_flat
from popgeo.data.graph_sizes import GraphSizes, first_graphs

_LOOKED_AT = 16  # graphs that tell what the attributes of a dataset belong to


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """What is known of a dataset before a batch is made of it.

    Attributes:
        dataset: The dataset.
        store: Its graphs, flat; only the first graphs, which show how a batch is laid out, if others must be fetched
            one by one.
        sizes: Nodes and edges of every graph, read when first asked for.
        why_not_all: Why `store` has only the first graphs; None if it has all of them.
    """

    dataset: Any
    store: FlatStore
    sizes: GraphSizes
    why_not_all: str | None

    @classmethod
    def of(
        cls,
        dataset: Any,
        *,
        exclude_keys: Sequence[str] | None = None,
        levels: Levels | None = None,
        progress_bar: bool | None = None,
    ) -> "Opened":
        """Reads a dataset that is in memory or flat on disk; of any other dataset, the first graphs.

        Args:
            dataset: What `FixedSizeDataLoader` takes.
            exclude_keys: Attributes to leave out.
            levels: What an attribute's rows belong to, if names and sizes do not tell.
            progress_bar: Whether to show a bar if reading lasts longer than a second; None means at a terminal and in
                notebooks.

        Raises:
            ValueError: the dataset is empty, or its graphs differ in attributes or types.

        Example:
            >>> import torch
            >>> from torch_geometric.data import Data
            >>> opened = Opened.of([Data(x=torch.ones(n, 1)) for n in (2, 3)])
            >>> opened.store, opened.holds_all
            (FlatStore(2 graphs, 5 nodes, 0 edges; x: node), True)
        """
        if why := why_not_flat(dataset):
            store = first_graphs(dataset, _LOOKED_AT, exclude_keys, levels)
            sizes = GraphSizes(dataset, exclude_keys, levels=levels, progress_bar=progress_bar)
        else:
            store = FlatStore.from_dataset(dataset, exclude_keys=exclude_keys, levels=levels, progress_bar=progress_bar)
            sizes = GraphSizes(dataset, known=store.sizes)
        return cls(dataset=dataset, store=store, sizes=sizes, why_not_all=why)

    @property
    def holds_all(self) -> bool:
        """Whether `store` has all graphs."""
        return self.why_not_all is None

"""A list of graphs in, one batch of fixed size out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Batch, Data, HeteroData

from popgeo.data.cutter import BatchCutter, check_fits
from popgeo.data.flat_store import FlatStore
from popgeo.data.levels import Level
from popgeo.data.sizes import FixedSizeOptions
from popgeo.data.sort import sort_edges


class FixedSizeCollater:
    """Collates graphs into a `Batch` whose shapes never change.

    The real nodes, edges and graphs come first and equal `Batch.from_data_list`; padding comes last. All padding nodes
    belong to the first padding graph, and padding edges join padding nodes, so that no real value is ever touched.

    Args:
        fixed_size_options: Sizes of the batch and what padding is filled with.
        add_masks_to_batch: Adds `nodes_mask`, `edges_mask`, `graphs_mask` (True = real); heterogeneous batches carry
            the first two in each type's store.
        follow_batch: Attributes to add an assignment vector for, as `Batch.from_data_list` does.
        exclude_keys: Attributes to leave out.
        levels: What an attribute's rows belong to, as `{"y": "graph"}`, where names and sizes do not tell.
        index_dtype: `torch.int64`, or `torch.int32` for machines that count in 32 bits; for `edge_index`, `batch`,
            `ptr` and every other attribute that PyG increments.
        spread_padding_edges: Deals padding edges out to all padding nodes, so that no row of a scatter is hot;
            otherwise all are loops on the first padding node.
        sort_edges: Sorts the edges of each graph by destination and adds `rowptr`: the edges that end at node `i` are
            `rowptr[i]` to `rowptr[i + 1]`.

    Example:
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3)]
        >>> batch = FixedSizeCollater(FixedSizeOptions(num_nodes=8, num_edges=4, num_graphs=3), True)(graphs)
        >>> batch.edge_index
        tensor([[0, 2, 5, 5],
                [1, 3, 5, 5]])
        >>> batch.nodes_mask
        tensor([ True,  True,  True,  True,  True, False, False, False])
    """

    def __init__(
        self,
        fixed_size_options: FixedSizeOptions,
        add_masks_to_batch: bool = False,
        *,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        levels: Mapping[str, str | Level] | None = None,
        index_dtype: torch.dtype = torch.int64,
        spread_padding_edges: bool = False,
        sort_edges: bool = False,
    ) -> None:
        self.options = fixed_size_options
        self.exclude_keys, self.levels, self.sort_edges = exclude_keys, levels, sort_edges
        self.choices: dict[str, Any] = {
            "add_pad_masks": add_masks_to_batch,
            "follow_batch": tuple(follow_batch or ()),
            "index_dtype": index_dtype,
            "spread_padding_edges": spread_padding_edges,
        }

    def __call__(self, graphs: Sequence[Data | HeteroData] | Batch) -> Batch:
        """One batch of the given graphs, which stay as they are.

        Args:
            graphs: A list of graphs, or a `Batch` made by `Batch.from_data_list`.

        Raises:
            ValueError: not a list of graphs, or more graphs, nodes or edges than fit.
        """
        if isinstance(graphs, Batch):
            graphs = graphs.to_data_list()
        if not isinstance(graphs, (list, tuple)):
            raise ValueError(f"Expected a list of graphs or a Batch, got {type(graphs).__name__}. Wrap it in a list.")
        store = FlatStore.from_dataset(list(graphs), exclude_keys=self.exclude_keys, levels=self.levels)
        store = sort_edges(store) if self.sort_edges else store
        ids, ptr = np.arange(len(graphs)), np.array([0, len(graphs)])
        check_fits(store, self.options, ids, ptr)
        return BatchCutter(store, self.options, **self.choices).cut(ids, ptr)[0]

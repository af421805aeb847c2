"""Sorting of the edges of a flat dataset by destination, once for all batches."""

import dataclasses

import numpy as np
import torch

from popgeo.data.axes import GRAPHS, Level, ends_of, require_certain
from popgeo.data.columns import Self
from popgeo.data.validate import check_indices

_WHY = "sorting edges moves the rows of edge attributes"


def sort_edges(store: Self) -> Self:
    """Return the graphs with edges sorted by destination; edges with the same destination keep their order.

    Batches of the result have `rowptr`: the edges that end at node `i` are `rowptr[i]` to `rowptr[i + 1]`. Edge
    attributes are copied, unless the edges are already sorted.

    Raises:
        ValueError: an edge ends at a node that its graph does not have.

    Example:
        >>> from torch_geometric.data import Data
        >>> from popgeo.data import FlatStore
        >>> graph = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1, 2], [2, 0, 1]]))
        >>> store = sort_edges(FlatStore.from_dataset([graph]))
        >>> store.attributes[1].values
        tensor([[1, 2, 0],
                [0, 1, 2]])
    """
    if store.row_ends is not None:
        return store
    check_indices(dataclasses.replace(store, indices=None, _cache={}))  # all stored graphs, not only the view
    require_certain((a for a in store.attributes if a.doubt is Level.EDGE and a.axis != GRAPHS), _WHY)
    attributes, row_ends = list(store.attributes), {}
    for axis in (axis for axis in store.size_axes if axis.level is Level.EDGE):
        index = next((a for a in attributes if a.axis == axis and a.name == "edge_index"), None)
        nodes = store.row_pointers[ends_of(axis)[1]]
        edges = store.row_pointers[axis]
        if index is None:
            row_ends[axis.store] = torch.zeros(int(nodes[-1]), dtype=torch.int64)
            continue
        destination = index.tensor[1].to(torch.int64) + nodes[:-1][torch.repeat_interleave(edges.diff())]
        if bool((destination.diff() < 0).any()):
            order = torch.from_numpy(np.argsort(destination.numpy(), kind="stable"))
            for i, one in enumerate(attributes):
                if one.axis == axis and one.is_tensor:
                    attributes[i] = dataclasses.replace(one, values=one.tensor.index_select(one.dim, order))
        ends = torch.bincount(destination, minlength=int(nodes[-1])).cumsum(0)
        row_ends[axis.store] = ends - edges[:-1][torch.repeat_interleave(nodes.diff())]
    return dataclasses.replace(store, attributes=tuple(attributes), row_ends=row_ends)

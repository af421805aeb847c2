"""How many bytes a graph takes, by hand."""

import torch
from torch_geometric.data import Data

from popgeo.data import FlatStore
from popgeo.data.store.blocks import bytes_of_graphs


def test_the_bytes_of_graphs_by_hand():
    graphs = [
        Data(x=torch.ones(n, 3), edge_index=torch.zeros(2, e).long(), y=torch.ones(1, 5)) for n, e in ((2, 1), (4, 0))
    ]
    # A node has 3 floats, an edge 2 whole numbers of 8 bytes, a graph 5 floats; each row of each 8 more.
    assert bytes_of_graphs(FlatStore.from_dataset(graphs)).tolist() == [2 * 20 + 1 * 24 + 28, 4 * 20 + 28]

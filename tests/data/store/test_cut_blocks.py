"""How many bytes a graph takes, by hand."""

import torch
from torch_geometric.data import Data

from popgeo.data import FlatStore, Level
from popgeo.data.store.save_columns import blocks, bytes_of_graphs


def test_the_bytes_of_graphs_by_hand():
    graphs = [
        Data(x=torch.ones(n, 3), edge_index=torch.zeros(2, e).long(), y=torch.ones(1, 5)) for n, e in ((2, 1), (4, 0))
    ]
    # A node has 3 floats, an edge 2 whole numbers of 8 bytes, a graph 5 floats; each row of each 8 more.
    assert bytes_of_graphs(FlatStore.from_dataset(graphs)).tolist() == [2 * 20 + 1 * 24 + 28, 4 * 20 + 28]


def test_blocks_take_as_many_graphs_as_fit_twice_or_one():
    counts = [3, 1, 4, 1, 5, 9, 2, 6, 0, 0, 5]
    store = FlatStore.from_dataset([Data(x=torch.full((n, 1), float(i)), num_nodes=n) for i, n in enumerate(counts)])
    (nodes,) = [axis for axis in store.row_pointers if axis.level is Level.NODE]
    size = bytes_of_graphs(store)
    for start in (0, 1, 5, 11):
        for most in (1, 24, 48, 96, 100, 200, 10_000, 2 * int(size[start : start + 3].sum()) - 2):
            expected, at = [], start
            while at < len(counts):
                stop = at + 1
                while stop < len(counts) and 2 * size[at : stop + 1].sum() <= most:
                    stop += 1
                expected.append(counts[at:stop])
                at = stop
            found = [block.counts(nodes).tolist() for block in blocks(store, start, most)]
            assert found == expected

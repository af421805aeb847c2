"""A batch of fixed size is a batch of PyG."""

import pickle

from torch_geometric.data import Batch, Data

from popgeo.data import FixedSizeCollater, FixedSizeOptions
from tests.support.graphs import graph, same


def test_a_batch_is_a_batch_of_pyg():
    graphs = [graph(3, 4), graph(2, 1, seed=1)]
    batch = FixedSizeCollater(FixedSizeOptions(9, 8, 4), add_masks_to_batch=True)(graphs)
    assert isinstance(batch, Batch)
    assert isinstance(batch, Data)
    assert batch.num_nodes == 9
    assert batch.num_edges == 8
    assert len(batch.to_data_list()) == 4
    assert same(batch[1].x, graphs[1].x)
    assert same(batch[-3:][0].x, graphs[1].x)
    assert same(batch.to("cpu").x, batch.x)
    assert same(batch.clone()[0].x, graphs[0].x)
    copied = pickle.loads(pickle.dumps(batch))
    assert same(copied[1].edge_index, graphs[1].edge_index)
    assert batch.subgraph(batch.nodes_mask).num_nodes == 5
    batch.x = batch.x + 1
    assert "x" in batch

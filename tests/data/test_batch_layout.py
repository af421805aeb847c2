"""Which tensors a batch has, and what their padding is."""

import pytest
import torch
from torch_geometric.data import Batch, Data

from popgeo.data import FixedSizeCollater, FixedSizeOptions, unpad
from tests.support.graphs import assert_same_graphs, graph


def test_spread_padding_edges_visit_each_padding_node_equally(native):
    collate = FixedSizeCollater(FixedSizeOptions(9, 14, 3), add_masks_to_batch=True, spread_padding_edges=True)
    batch = collate([graph(5, 2)])
    padding = batch.edge_index[:, ~batch.edges_mask]
    assert padding.tolist() == [[5, 5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8]] * 2


def test_a_follow_batch_vector_equals_pygs_on_the_real_part(native):
    graphs = [graph(3, 4), graph(2, 1, seed=1)]
    batch = FixedSizeCollater(FixedSizeOptions(9, 8, 5), follow_batch=["edge_attr", "y"])(graphs)
    expected = Batch.from_data_list(graphs, follow_batch=["edge_attr", "y"])
    assert batch.edge_attr_batch.tolist() == [*expected.edge_attr_batch.tolist(), 2, 2, 2]
    assert batch.edge_attr_ptr.tolist() == [*expected.edge_attr_ptr.tolist(), 8, 8, 8]
    assert batch.y_batch.tolist() == [0, 1, 2, 3, 4]


def test_a_graph_attribute_of_varying_length_needs_room_of_its_own(native):
    graphs = [Data(x=torch.ones(4, 1), rings=torch.arange(n)) for n in (1, 3)]
    with pytest.raises(ValueError, match=r"'rings' has 1 to 3 rows per graph.*num_rows=\{'rings': 7\}"):
        FixedSizeCollater(FixedSizeOptions(9, 0, 3))(graphs)
    batch = FixedSizeCollater(FixedSizeOptions(9, 0, 3, num_rows={"rings": 7}), True, follow_batch=["rings"])(graphs)
    assert batch.rings.tolist() == [0, 0, 1, 2, 0, 0, 0]
    assert batch.rings_batch.tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert batch.rings_ptr.tolist() == [0, 1, 4, 7]
    assert_same_graphs(unpad(batch), graphs)


def test_a_name_that_batches_use_themselves_is_refused_as_an_attribute():
    graphs = [graph(n, n) for n in (1, 2)]
    for one in graphs:
        one.nodes_mask = torch.zeros(one.num_nodes, dtype=torch.bool)
    options = FixedSizeOptions(9, 8, 5)
    with pytest.raises(ValueError, match=r"have \['nodes_mask'\].* exclude_keys"):
        FixedSizeCollater(options, True)(graphs)
    assert not FixedSizeCollater(options)(graphs).nodes_mask.any()
    assert FixedSizeCollater(options, True, exclude_keys=["nodes_mask"])(graphs).nodes_mask.sum() == 3

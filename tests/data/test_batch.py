"""A batch of fixed size is a batch of PyG."""

import pickle

import pytest
import torch
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
    assert len(batch.to_data_list()) == len(batch) == 2
    assert same(batch[1].x, graphs[1].x)
    assert same(batch[-1].x, graphs[1].x)
    assert [part.num_nodes for part in batch[-3:]] == [3, 2]
    assert (batch.num_real_graphs, batch.num_real_nodes, batch.num_real_edges) == (2, 5, 5)
    for number in (2, 3, -3):
        with pytest.raises(IndexError, match=f"Graph {number} was asked for; the batch has 2 real graphs"):
            batch[number]
    assert same(batch.to("cpu").x, batch.x)
    assert same(batch.clone()[0].x, graphs[0].x)
    copied = pickle.loads(pickle.dumps(batch))
    assert same(copied[1].edge_index, graphs[1].edge_index)
    assert batch.subgraph(batch.nodes_mask).num_nodes == 5
    batch.x = batch.x + 1
    assert "x" in batch


def test_padding_graphs_have_the_first_graphs_objects_where_no_other_is_given():
    graphs = [graph(3, 4), graph(2, 1, seed=1)]
    assert FixedSizeCollater(FixedSizeOptions(9, 8, 4))(graphs).name == ["graph 0", "graph 1", "graph 0", "graph 0"]
    options = FixedSizeOptions(9, 8, 4, pad_graph_defaults={"name": "none"})
    assert FixedSizeCollater(options)(graphs).name == ["graph 0", "graph 1", "none", "none"]


def test_an_attribute_that_is_called_a_batch_counts_on_from_graph_to_graph():
    groups = [[0, 0, 1], [0, 2]]
    graphs = [Data(x=torch.ones(len(group), 1), group_batch=torch.tensor(group)) for group in groups]
    batch = FixedSizeCollater(FixedSizeOptions(7, 0, 3))(graphs)
    assert batch.group_batch[:5].tolist() == [0, 0, 1, 2, 4]  # after groups 0 and 1 come 2, and 4
    assert batch.group_batch[:5].tolist() == Batch.from_data_list(graphs).group_batch.tolist()


class InElectronvolts(Data):
    """Graph data of a user that keeps something next to the attributes of graphs."""

    def __init__(self, **attributes):
        super().__init__(**attributes)
        self.__dict__["unit"] = "eV"


def test_what_a_class_of_graph_data_keeps_for_itself_is_in_each_batch():
    graphs = [InElectronvolts(x=torch.ones(2, 1), edge_index=torch.zeros(2, 0, dtype=torch.long)) for _ in range(3)]
    batch = FixedSizeCollater(FixedSizeOptions(num_nodes=8, num_edges=4, num_graphs=4))(graphs)
    assert batch.__dict__["unit"] == "eV"

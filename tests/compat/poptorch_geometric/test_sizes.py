"""Sizes of a batch: assignable fields, and sizes measured on data."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from popgeo import data
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions

EDGES = ("a", "to", "b")


def paths(*sizes):
    return [Data(x=torch.ones(n, 1), edge_index=torch.stack([torch.arange(n - 1), torch.arange(1, n)])) for n in sizes]


def test_edges_default_to_those_of_a_complete_graph_without_loops():
    assert FixedSizeOptions(num_nodes=5).num_edges == 20
    assert FixedSizeOptions(num_nodes={"a": 2, "b": 3}).num_edges == 20  # 5 nodes, for each type
    assert FixedSizeOptions(num_nodes=5, num_edges=0).num_edges == 0  # a point cloud


def test_fields_can_be_assigned_to():
    options = FixedSizeOptions(num_nodes=5, num_edges=4)
    options.num_graphs = 300
    options.num_nodes = 7
    assert (options.num_graphs, options.total_num_nodes) == (300, 7)
    assert isinstance(options, data.FixedSizeOptions)  # popgeo's functions accept it
    assert options != FixedSizeOptions(num_nodes=5, num_edges=4)


def test_sizes_per_type_are_given_in_place():
    options = FixedSizeOptions(num_nodes=5, num_edges={EDGES: 3})
    assert not options.is_hetero()
    assert options.to_hetero(["a", "b"], [EDGES, ("b", "to", "a")]) is options
    assert options.is_hetero()
    assert options.num_nodes == {"a": 5, "b": 5}
    assert options.num_edges == {EDGES: 3}
    assert (options.total_num_nodes, options.total_num_edges) == (10, 3)


def test_a_batch_needs_a_real_and_a_padding_graph():
    with pytest.raises(ValueError, match="The number of graphs in the batch must be at least 2"):
        FixedSizeOptions(num_nodes=5, num_graphs=1)
    with pytest.raises(ValueError, match="so pass 2 or more"):
        FixedSizeOptions.from_dataset(paths(2, 3), batch_size=1)


def test_a_dataset_gives_room_for_its_largest_graphs():
    options = FixedSizeOptions.from_dataset(paths(2, 6, 3), batch_size=4)
    assert (options.num_nodes, options.num_edges, options.num_graphs) == (3 * 6 + 1, 3 * 5 + 1, 4)
    assert FixedSizeOptions.from_dataset(paths(2, 6, 3), batch_size=4, sample_limit=1).num_nodes == 3 * 2 + 1


def test_a_dataset_of_several_types_gives_a_size_for_each():
    graph = HeteroData(a={"x": torch.ones(2, 1)}, b={"x": torch.ones(5, 1)})
    graph[EDGES].edge_index = torch.tensor([[0, 1, 1], [0, 0, 4]])
    options = FixedSizeOptions.from_dataset([graph], batch_size=3)
    assert options.num_nodes == {"a": 5, "b": 11}
    assert options.num_edges == {EDGES: 7}


def test_a_loader_is_run_through_once_and_gives_its_largest_sizes_and_one_more():
    seen = []

    def batches():
        for graph in paths(2, 6, 3):
            seen.append(graph)
            yield graph

    options = FixedSizeOptions.from_loader(batches(), sample_limit=1000)
    assert (options.num_nodes, options.num_edges, options.num_graphs) == (7, 6, 2)
    assert len(seen) == 3
    with pytest.raises(ValueError, match="yields no batch"):
        FixedSizeOptions.from_loader([])


def test_representation_says_what_is_reserved():
    text = repr(FixedSizeOptions(num_nodes=5))
    assert text.startswith("FixedSizeOptions(num_nodes=5 (At least one node reserved for padding), num_edges=20 (At")

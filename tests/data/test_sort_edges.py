"""Edges sorted by destination, and the row pointers of a batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore
from popgeo.data.sort_edges import sort_edges
from popgeo.native import library
from tests.support.graphs import WRITES, graph, lists_of_graphs, lists_of_hetero_graphs, same


def test_row_pointers_worked_out_by_hand(native):
    graphs = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1, 0], [1, 0, 1]])), graph(1, 0)]
    graphs = [Data(x=g.x[:, :1], edge_index=g.edge_index) for g in graphs]
    batch = FixedSizeCollater(FixedSizeOptions(5, 5, 3), sort_edges=True)(graphs)
    assert batch.edge_index.tolist() == [[1, 0, 0, 3, 3], [0, 1, 1, 3, 3]]
    assert batch.rowptr.tolist() == [0, 1, 3, 3, 5, 5]


@settings(deadline=None, max_examples=30)
@given(graphs=lists_of_graphs(), spread=st.booleans(), edges=st.integers(0, 9), compiled=st.booleans())
def test_row_pointers_find_the_edges_of_every_node(graphs, spread, edges, compiled):
    options = FixedSizeOptions(sum(g.num_nodes for g in graphs) + 3, sum(g.num_edges for g in graphs) + edges, 8)
    collate = FixedSizeCollater(options, sort_edges=True, spread_padding_edges=spread)
    if compiled:
        batch = collate(graphs)
    else:
        with library.without_native():
            batch = collate(graphs)
    counts = torch.bincount(batch.edge_index[1], minlength=options.num_nodes)
    assert batch.rowptr.tolist() == [0, *counts.cumsum(0).tolist()]
    assert (batch.edge_index[1].diff() >= 0).all()


@settings(deadline=None, max_examples=15)
@given(graphs=lists_of_hetero_graphs(), spread=st.booleans())
def test_each_edge_type_has_row_pointers_of_its_own(graphs, spread):
    batch = FixedSizeCollater(FixedSizeOptions(19, 25, 6), sort_edges=True, spread_padding_edges=spread)(graphs)
    counts = torch.bincount(batch[WRITES].edge_index[1], minlength=19)
    assert batch[WRITES].rowptr.tolist() == [0, *counts.cumsum(0).tolist()]


def test_edge_attributes_move_with_their_edges():
    data = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1, 2], [2, 0, 1]]), edge_attr=torch.tensor([2, 0, 1]))
    store = sort_edges(FlatStore.from_dataset([data]))
    assert same(store.attributes[2].values, torch.tensor([0, 1, 2]))
    assert data.edge_attr.tolist() == [2, 0, 1]


def test_sorted_edges_are_not_copied():
    data = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1, 2], [0, 1, 2]]))
    store = FlatStore.from_dataset([data])
    assert sort_edges(store).attributes[1].values is store.attributes[1].values


def test_sorted_edges_that_share_an_end_are_not_copied():
    data = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1, 1], [0, 0, 1]]))
    store = FlatStore.from_dataset([data])
    assert sort_edges(store).attributes[1].values is store.attributes[1].values


def test_an_edge_to_a_missing_node_is_refused():
    data = [graph(2, 1), Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [2]]))]
    data = [Data(x=g.x, edge_index=g.edge_index) for g in data]
    with pytest.raises(ValueError, match=r"Graph 1 has 2 in edge_index\[1\], but 2 nodes"):
        sort_edges(FlatStore.from_dataset(data, validate=False))

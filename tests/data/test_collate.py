"""What holds for every batch that the collater makes."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from popgeo.data import FixedSizeCollater, FixedSizeOptions, unpad
from tests.support.graphs import (
    CITES,
    WRITES,
    assert_real_part_equals,
    assert_same_graphs,
    graph,
    hetero_graph,
    lists_of_graphs,
    lists_of_hetero_graphs,
    options_for,
)

spare = st.integers(0, 5)


def test_a_batch_worked_out_by_hand():
    graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [n - 1]]), y=torch.tensor([n])) for n in (2, 3)]
    batch = FixedSizeCollater(FixedSizeOptions(8, 4, 4, node_pad_value=9.0), add_masks_to_batch=True)(graphs)
    assert batch.x.flatten().tolist() == [1, 1, 1, 1, 1, 9, 9, 9]
    assert batch.edge_index.tolist() == [[0, 2, 5, 5], [1, 4, 5, 5]]
    assert batch.y.tolist() == [2, 3, 0, 0]
    assert batch.batch.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    assert batch.ptr.tolist() == [0, 2, 5, 8, 8]
    assert batch.nodes_mask.tolist() == [True] * 5 + [False] * 3
    assert batch.edges_mask.tolist() == [True] * 2 + [False] * 2
    assert batch.graphs_mask.tolist() == [True] * 2 + [False] * 2
    assert batch.num_graphs == 4


@settings(deadline=None, max_examples=40)
@given(graphs=lists_of_graphs(), nodes=spare, edges=spare, num_graphs=spare)
def test_the_contract_of_a_batch(graphs, nodes, edges, num_graphs):
    options = options_for(graphs, nodes, edges, num_graphs)
    before = copy.deepcopy(graphs)
    batch = FixedSizeCollater(options, add_masks_to_batch=True)(graphs)

    assert batch.x.shape == (options.num_nodes, 3)
    assert batch.edge_index.shape == (2, options.num_edges)
    assert batch.y.shape == (options.num_graphs, 5)
    assert batch.ptr.shape == (options.num_graphs + 1,)
    assert len(batch.name) == batch.num_graphs == options.num_graphs
    assert_real_part_equals(batch, graphs)
    for mask, real in (
        (batch.nodes_mask, sum(g.num_nodes for g in graphs)),
        (batch.edges_mask, sum(g.num_edges for g in graphs)),
        (batch.graphs_mask, len(graphs)),
    ):
        assert mask[:real].all()
        assert not mask[real:].any()
    assert not batch.nodes_mask[-1]
    assert not batch.graphs_mask[-1]
    assert not batch.nodes_mask[batch.edge_index[:, ~batch.edges_mask]].any()
    assert not batch.graphs_mask[batch.batch[~batch.nodes_mask]].any()
    assert_same_graphs(graphs, before)


@settings(deadline=None, max_examples=25)
@given(graphs=lists_of_graphs(), nodes=spare, edges=spare, num_graphs=spare)
def test_unpad_undoes_padding(graphs, nodes, edges, num_graphs):
    batch = FixedSizeCollater(options_for(graphs, nodes, edges, num_graphs), add_masks_to_batch=True)(graphs)
    assert_same_graphs(unpad(batch), graphs)


@settings(deadline=None, max_examples=25)
@given(graphs=lists_of_hetero_graphs(), nodes=spare, edges=spare)
def test_the_contract_of_a_heterogeneous_batch(graphs, nodes, edges):
    options = FixedSizeOptions(17 + nodes, 20 + edges, 6)
    batch = FixedSizeCollater(options, add_masks_to_batch=True)(graphs)
    assert_real_part_equals(batch, graphs)
    assert_same_graphs(unpad(batch), graphs)
    for key in (WRITES, CITES):
        store = batch[key]
        assert store.edge_index.shape == (2, options.num_edges)
        assert int(store.edges_mask.sum()) == sum(g[key].num_edges for g in graphs)
        for end, row in zip((key[0], key[2]), store.edge_index[:, ~store.edges_mask], strict=True):
            assert not batch[end].nodes_mask[row].any()
    for key in ("a", "b"):
        assert batch[key].batch.shape == batch[key].nodes_mask.shape == (options.num_nodes,)
        assert not batch[key].nodes_mask[-1]


def test_a_heterogeneous_type_without_budget_is_named():
    with pytest.raises(ValueError, match=r"num_nodes has no entry for 'b'; it has \['a'\]"):
        FixedSizeCollater(FixedSizeOptions({"a": 9}, 9, 4))([hetero_graph(1, 1, 1, 1)])


def test_nan_positions_are_not_an_error(native):
    batch = FixedSizeCollater(FixedSizeOptions(4, 0, 2))([Data(pos=torch.full((2, 3), torch.nan))])
    assert batch.pos[:2].isnan().all()


def test_a_batch_of_pyg_can_be_padded():
    graphs = [graph(3, 4), graph(2, 1, seed=1)]
    padded = FixedSizeCollater(FixedSizeOptions(9, 8, 4), add_masks_to_batch=True)(Batch.from_data_list(graphs))
    assert_real_part_equals(padded, graphs)

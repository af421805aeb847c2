"""One graph grown to fixed sizes."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.datasets import FakeDataset
from torch_geometric.transforms import Compose, ToUndirected
from torch_geometric.transforms.pad import AttrNamePadding, EdgeTypePadding, NodeTypePadding

from popgeo.data import FixedSizeCollater, FixedSizeOptions, Pad, unpad
from popgeo.data.super_batch import join
from tests.support.graphs import CITES, WRITES, assert_same_graphs, graph, hetero_graph, same


def test_a_graph_padded_by_hand(native):
    data = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), edge_attr=torch.ones(1), y=torch.tensor([7]))
    padded = Pad(4, 3, node_pad_value=5, edge_pad_value=-1, add_pad_mask=True)(data)
    assert type(padded) is Data
    assert padded.x.flatten().tolist() == [1, 1, 5, 5]
    assert padded.edge_index.tolist() == [[0, 2, 2], [1, 2, 2]]
    assert padded.edge_attr.tolist() == [1, -1, -1]
    assert padded.y.tolist() == [7]
    assert padded.nodes_mask.tolist() == [True, True, False, False]
    assert padded.edges_mask.tolist() == [True, False, False]
    assert data.x.shape == (2, 1)


@settings(deadline=None, max_examples=25)
@given(nodes=st.integers(1, 7), edges=st.integers(0, 9), more=st.integers(1, 5), more_edges=st.integers(0, 5))
def test_unpad_undoes_pad(nodes, edges, more, more_edges):
    data = graph(nodes, edges)
    before = copy.deepcopy(data)
    padded = Pad(nodes + more, edges + more_edges, add_pad_mask=True)(data)
    assert padded.num_nodes == nodes + more
    assert padded.num_edges == edges + more_edges
    assert_same_graphs(unpad(padded), [data])
    assert_same_graphs([data], [before])


def test_heterogeneous_graphs_are_padded_per_type(native):
    data = hetero_graph(2, 3, 4, 1)
    padded = Pad({"a": 4, "b": 5}, {WRITES: 6, CITES: 1}, add_pad_mask=True)(data)
    assert padded["a"].x.shape == (4, 2)
    assert padded["b"].num_nodes == 5
    assert padded[WRITES].edge_index[:, 4:].tolist() == [[2, 2], [3, 3]]
    assert same(padded[CITES].edge_index, data[CITES].edge_index)
    assert_same_graphs(unpad(padded), [data])


def test_pad_values_may_differ_by_attribute_and_type(native):
    data = hetero_graph(2, 3, 4, 1)
    padded = Pad(
        5,
        6,
        node_pad_value=NodeTypePadding({"a": AttrNamePadding({"x": 3.0})}, default=1.0),
        edge_pad_value=EdgeTypePadding({WRITES: AttrNamePadding({"edge_attr": 4.0})}),
    )(data)
    assert (padded["a"].x[2:] == 3).all()
    assert (padded[WRITES].edge_attr[4:] == 4).all()


def test_train_masks_are_false_for_padding_whatever_fills_the_features(native):
    padded = Pad(6, 6, node_pad_value=1.0)(graph(3, 2))
    assert not padded.train_mask[3:].any()
    assert Pad(6, 6, mask_pad_value=True)(graph(3, 2)).train_mask[3:].all()


def test_a_padding_edge_never_points_at_a_node_that_is_not_there():
    with pytest.raises(ValueError, match=r"needs 4 padding edges.*but all 3 nodes are real"):
        Pad(3, 6)(graph(3, 2))
    assert Pad(3, 2)(graph(3, 2)).num_nodes == 3
    assert Pad(3)(Data(pos=torch.ones(3, 3))).pos.shape == (3, 3)


@pytest.mark.parametrize(
    ("pad", "found"), [(Pad(2, 9), "has 3 nodes, Pad.max_num_nodes is 2"), (Pad(4, 1), "has 2 edges")]
)
def test_a_graph_that_is_too_large_is_refused(pad, found):
    with pytest.raises(ValueError, match=found):
        pad(graph(3, 2))


def test_pad_composes_with_transforms_of_pyg_and_serves_as_one():
    dataset = FakeDataset(num_graphs=3, avg_num_nodes=6, transform=Compose([ToUndirected(), Pad(40, 400)]))
    assert {data.x.shape[0] for data in dataset} == {40}
    assert repr(Pad(40, 400)) == "Pad(max_num_nodes=40, max_num_edges=400)"


def test_what_carries_no_mask_is_not_unpadded():
    with pytest.raises(ValueError, match="has no nodes_mask"):
        unpad(graph(3, 2))


def test_a_graph_without_features_states_how_many_nodes_it_has_now(native):
    data = Data(num_nodes=3, edge_index=torch.tensor([[0, 1], [2, 1]]), y=torch.tensor([7.0]))
    padded = Pad(5, 4, add_pad_mask=True)(data)
    assert (padded.num_nodes, data.num_nodes) == (5, 3)
    assert padded.edge_index.tolist() == [[0, 1, 3, 3], [2, 1, 3, 3]]
    assert_same_graphs(unpad(padded), [data])
    assert unpad(padded)[0].num_nodes == 3
    with pytest.warns(UserWarning, match="Nodes are counted by edges alone"):
        by_edges = Pad(5, 4)(Data(edge_index=torch.tensor([[0, 1], [2, 1]])))
    assert (by_edges.num_nodes, "num_nodes" in by_edges) == (5, True)
    assert "num_nodes" not in Pad(5, 4)(Data(x=torch.ones(3, 1)))


def test_attributes_are_left_out_when_told_to(native):
    padded = Pad(6, 6, exclude_keys=["pos", "edge_attr", "y", "nothing"])(graph(3, 2))
    assert set(graph(3, 2).keys()) - set(padded.keys()) == {"pos", "edge_attr", "y"}
    assert padded.x.shape == (6, 3)
    hetero = Pad(6, 6, exclude_keys=["edge_attr"])(hetero_graph(2, 3, 4, 1))
    assert set(hetero[WRITES].keys()) == {"edge_index"}


def test_attributes_of_a_graph_stay_as_they_are(native):
    data = graph(3, 2)
    padded = Pad(6, 6, node_pad_value=2, edge_pad_value=3, add_pad_mask=True)(data)
    assert set(padded.keys()) == {*data.keys(), "nodes_mask", "edges_mask"}
    for name in ("y", "root_index", "weight"):
        assert same(padded[name], data[name])
    assert (padded.charge, padded.name) == (data.charge, data.name)
    assert (padded.pos[3:] == 2).all()
    assert (padded.edge_attr[2:] == 3).all()
    assert set(Pad(6, 6)(data).keys()) == set(data.keys())


def test_as_many_edges_as_pairs_of_nodes_are_kept_where_none_are_given():
    assert Pad(4)(graph(3, 2)).edge_index.shape == (2, 16)
    assert (Pad(6, 6).mask_pad_value, Pad(6, 6).add_pad_mask) == (False, False)
    with pytest.raises(ValueError, match="max_num_edges is needed if max_num_nodes is given per type"):
        Pad({"a": 3, "b": 4})


def test_masks_of_nodes_are_filled_behind_the_real_ones_only(native):
    data = graph(3, 2)
    for value in (False, True):
        mask = Pad(6, 6, mask_pad_value=value)(data).train_mask
        assert mask.tolist() == data.train_mask.tolist() + [value] * 3
    assert Pad(6, 6, mask_pad_value=True)(data).x[3:].any().item() is False


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (({"a": 1, "b": 9}, 9), r"has 2 a nodes, Pad.max_num_nodes is 1. Raise it to 2 or more"),
        (
            ({"a": 9, "b": 9}, {WRITES: 3, CITES: 9}),
            r"has 4 a-writes-b edges, Pad.max_num_edges is 3. Raise it to 4 or more",
        ),
        (
            ({"a": 3, "b": 3}, {WRITES: 6, CITES: 1}),
            r"needs 2 padding edges, which join padding nodes, but all 3 b nodes are real. "
            "Raise max_num_nodes to 4",
        ),
    ],
)
def test_a_graph_of_types_that_is_too_large_is_refused_by_the_type(sizes, message):
    with pytest.raises(ValueError, match=message):
        Pad(*sizes)(hetero_graph(2, 3, 4, 1))
    full = Pad({"a": 2, "b": 3}, {WRITES: 4, CITES: 1}, add_pad_mask=True)(hetero_graph(2, 3, 4, 1))
    assert_same_graphs(unpad(full), [hetero_graph(2, 3, 4, 1)])
    assert full["a"].nodes_mask.all()


def test_a_batch_without_masks_cannot_be_unpadded():
    with pytest.raises(ValueError, match="The batch has no graphs_mask, so padding and graphs cannot be distinguished"):
        unpad(FixedSizeCollater(FixedSizeOptions(6, 6, 3))([graph(3, 2)]))


def test_a_joined_batch_is_unpadded_batch_after_batch():
    collate = FixedSizeCollater(FixedSizeOptions(6, 6, 3), add_masks_to_batch=True)
    graphs = [graph(3, 2), graph(2, 1, 1), graph(4, 3, 2)]
    assert_same_graphs(unpad(join([collate(graphs[:2]), collate(graphs[2:])])), graphs)


def test_masks_of_one_level_are_enough_to_unpad_it():
    padded = Pad(6, 6, add_pad_mask=True)(graph(3, 2))
    del padded.edges_mask
    (left,) = unpad(padded)
    assert (left.x.shape[0], left.edge_index.shape[1], "nodes_mask" in left) == (3, 6, False)
    assert "nodes_mask" in padded
    padded = Pad(6, 6, add_pad_mask=True)(graph(3, 2))
    del padded.nodes_mask
    (left,) = unpad(padded)
    assert (left.x.shape[0], left.edge_index.shape[1]) == (6, 2)


def test_only_edges_whose_ends_are_known_need_a_node_of_padding():
    assert Pad(3, 6)(Data(x=torch.ones(3, 1), edge_attr=torch.ones(2))).edge_attr.tolist() == [1, 1, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="needs 4 padding edges, which join padding nodes, but all 3 nodes are real"):
        Pad(3, 6)(Data(x=torch.ones(3, 1), edge_index=torch.zeros(2, 2).long()))

"""What holds for every batch that the collater makes."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data, HeteroData

from popgeo.data import FixedSizeCollater, FixedSizeOptions, unpad
from popgeo.native import library
from tests.support.graphs import (
    CITES,
    WRITES,
    assert_real_part_equals,
    assert_same_graphs,
    graph,
    hetero_graph,
    lists_of_graphs,
    lists_of_hetero_graphs,
    same,
)

spare = st.integers(0, 5)


def options_for(graphs: list[Data], nodes: int, edges: int, num_graphs: int) -> FixedSizeOptions:
    """Options that leave so many slots beside the one node and graph that are always padding."""
    return FixedSizeOptions(
        num_nodes=sum(g.num_nodes for g in graphs) + 1 + nodes,
        num_edges=sum(g.num_edges for g in graphs) + edges,
        num_graphs=len(graphs) + 1 + num_graphs,
    )


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
@given(graphs=lists_of_graphs(), edges=spare, spread=st.booleans(), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_the_compiled_library_and_the_fallback_agree_to_the_last_bit(graphs, edges, spread, dtype):
    if not library.is_available():
        pytest.skip(library.reason())
    collate = FixedSizeCollater(
        options_for(graphs, 3, edges, 2),
        add_masks_to_batch=True,
        follow_batch=["edge_attr", "y", "x"],
        index_dtype=dtype,
        spread_padding_edges=spread,
    )
    compiled = collate(graphs)
    with library.without_native():
        fallback = collate(graphs)
    assert list(compiled.keys()) == list(fallback.keys())
    assert all(same(compiled[name], fallback[name]) for name in compiled.keys())  # noqa: SIM118


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


def test_increments_of_a_users_class_are_asked_for(native):
    class Pair(Data):
        def __inc__(self, key, value, *args, **kwargs):
            if key == "edge_index_t":
                return self.x_t.size(0)
            return super().__inc__(key, value, *args, **kwargs)

    graphs = [
        Pair(x=torch.ones(n, 1), x_t=torch.ones(n + 1, 2), edge_index_t=torch.arange(2 * n).view(2, n) % (n + 1))
        for n in (2, 3)
    ]
    options = FixedSizeOptions(9, 6, 4, num_rows={"x_t": 10})
    batch = FixedSizeCollater(options, add_masks_to_batch=True)(graphs)
    expected = Batch.from_data_list(graphs)
    assert same(batch.edge_index_t[:, :5], expected.edge_index_t)
    assert batch.edge_index_t[:, 5:].tolist() == [[7]] * 2  # the first padding row of x_t
    assert_same_graphs(unpad(batch), graphs)


def test_a_users_cat_dim_is_respected(native):
    class Stacked(Data):
        def __cat_dim__(self, key, value, *args, **kwargs):
            return {"image": None, "wide": 1}.get(key, super().__cat_dim__(key, value, *args, **kwargs))

    graphs = [Stacked(x=torch.ones(n, 1), image=torch.rand(2, 3), wide=torch.rand(2, n, 3)) for n in (2, 3)]
    batch = FixedSizeCollater(FixedSizeOptions(9, 0, 4), add_masks_to_batch=True)(graphs)
    assert batch.image.shape == (4, 2, 3)
    assert batch.wide.shape == (2, 9, 3)
    assert same(batch.wide[:, :5], torch.cat([g.wide for g in graphs], dim=1))
    assert_same_graphs(unpad(batch), graphs)


def test_a_graph_attribute_of_varying_length_needs_room_of_its_own(native):
    graphs = [Data(x=torch.ones(4, 1), rings=torch.arange(n)) for n in (1, 3)]
    with pytest.raises(ValueError, match=r"'rings' has 1 to 3 rows a graph.*num_rows=\{'rings': 7\}"):
        FixedSizeCollater(FixedSizeOptions(9, 0, 3))(graphs)
    batch = FixedSizeCollater(FixedSizeOptions(9, 0, 3, num_rows={"rings": 7}), True, follow_batch=["rings"])(graphs)
    assert batch.rings.tolist() == [0, 0, 1, 2, 0, 0, 0]
    assert batch.rings_batch.tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert batch.rings_ptr.tolist() == [0, 1, 4, 7]
    assert_same_graphs(unpad(batch), graphs)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (
            FixedSizeOptions(5, 9, 4),
            "Batch has 5 nodes, FixedSizeOptions.num_nodes is 5 with one kept for padding: 1 too many",
        ),
        (
            FixedSizeOptions(9, 4, 4),
            "Batch has 5 edges, FixedSizeOptions.num_edges is 4: 1 too many. Its largest graph is 0",
        ),
        (FixedSizeOptions(9, 9, 2), "Batch has 2 graphs, FixedSizeOptions.num_graphs is 2 with one kept for padding"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_remedy(options, found):
    with pytest.raises(ValueError, match=found.replace(".", r"\.") + ".*Raise"):
        FixedSizeCollater(options)([graph(3, 4), graph(2, 1)])


@pytest.mark.parametrize(
    ("graphs", "found"),
    [
        (graph(2, 1), "Expected a list of graphs or a Batch, got Data"),
        ([], "is empty"),
        ([graph(2, 1), "text"], "Item 1 of the dataset is a str"),
        ([graph(2, 1), hetero_graph(1, 1, 1, 1)], r"mixes \['Data', 'HeteroData'\]"),
        ([hetero_graph(1, 1, 1, 1), HeteroData()], "Graph 1 has the node and edge types"),
        ([Data(x=torch.ones(2, 1)), Data(x=torch.ones(2, 1), y=1)], r"Graphs 0 and 1 differ in the attributes \['y'\]"),
        ([Data(x=torch.ones(2, 1)), Data(x=torch.ones(2, 2))], "'x' cannot be joined along dimension 0"),
        ([Data(adj=torch.eye(2).to_sparse(), num_nodes=2)], "'adj' holds a Tensor, which has no flat layout"),
        ([Data(a=torch.ones(2))], "The number of nodes is unknown"),
    ],
)
def test_what_cannot_be_batched_is_refused(graphs, found):
    with pytest.raises(ValueError, match=found):
        FixedSizeCollater(FixedSizeOptions(9, 9, 4))(graphs)


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

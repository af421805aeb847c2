"""Graphs by rows: by hand, against plain numpy, and what is refused."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.native import library
from popgeo.sampling import CompressedGraph, Direction

EDGES = torch.tensor([[2, 0, 1, 0], [0, 1, 0, 3]])


def test_rows_hold_the_sources_of_incoming_edges_in_their_order(native):
    graph = CompressedGraph.from_edge_index(EDGES, num_nodes=4)
    assert graph.rowptr.tolist() == [0, 2, 3, 3, 4]
    assert graph.col.tolist() == [2, 1, 0, 0]
    assert graph.perm is not None
    assert graph.perm.tolist() == [0, 2, 1, 3]
    assert (graph.num_rows, graph.num_cols, graph.num_edges) == (4, 4, 4)


def test_rows_of_outgoing_edges_hold_destinations(native):
    graph = CompressedGraph.from_edge_index(EDGES, num_nodes=4, direction="outgoing")
    assert graph.rowptr.tolist() == [0, 2, 3, 4, 4]
    assert graph.col.tolist() == [1, 3, 0, 0]
    assert graph.direction is Direction.OUTGOING


def test_edges_that_are_sorted_keep_their_numbers_and_are_not_shared(native):
    edge_index = torch.tensor([[5, 1, 0], [0, 0, 4]])
    graph = CompressedGraph.from_edge_index(edge_index, num_nodes=6, dtype=torch.int64)
    assert graph.perm is None
    edge_index.zero_()
    assert graph.col.tolist() == [5, 1, 0]


def test_rows_are_sorted_by_time_and_equal_times_stay_in_order(native):
    edge_index = torch.tensor([[1, 2, 3, 1], [0, 0, 0, 2]])
    by_edge = CompressedGraph.from_edge_index(edge_index, 4, edge_time=torch.tensor([7, 5, 5, 0]))
    assert by_edge.col.tolist() == [2, 3, 1, 1]
    assert by_edge.time is not None
    assert by_edge.time.tolist() == [5, 5, 7, 0]
    assert by_edge.perm is not None
    assert by_edge.perm.tolist() == [1, 2, 0, 3]
    by_node = CompressedGraph.from_edge_index(edge_index, 4, node_time=torch.tensor([0, 9, 8, 1]))
    assert by_node.col.tolist() == [3, 2, 1, 1]


def test_weights_stay_with_their_edges(native):
    graph = CompressedGraph.from_edge_index(
        EDGES, 4, edge_weight=torch.tensor([1, 2, 3, 4]), edge_time=torch.tensor([9, 0, 1, 0])
    )
    assert graph.weight is not None
    assert graph.weight.tolist() == [3.0, 1.0, 2.0, 4.0]


def test_no_edge_and_no_node_are_graphs(native):
    none = torch.empty(2, 0, dtype=torch.int64)
    assert CompressedGraph.from_edge_index(none, 3).rowptr.tolist() == [0, 0, 0, 0]
    assert CompressedGraph.from_edge_index(none, 0).rowptr.tolist() == [0]


@settings(max_examples=60, deadline=None)
@given(
    num_nodes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    num_edges=st.integers(0, 60),
    dtypes=st.tuples(*[st.sampled_from([torch.int32, torch.int64])] * 2),
    direction=st.sampled_from(Direction),
    seed=st.integers(0, 99),
)
def test_a_graph_is_a_stable_sort_with_and_without_the_library(num_nodes, num_edges, dtypes, direction, seed):
    random = torch.Generator().manual_seed(seed)
    edge_index = torch.stack([torch.randint(size, (num_edges,), generator=random) for size in num_nodes]).to(dtypes[0])
    arguments = {"direction": direction, "dtype": dtypes[1]}
    graph = CompressedGraph.from_edge_index(edge_index, num_nodes, **arguments)
    with library.without_native():
        plain = CompressedGraph.from_edge_index(edge_index, num_nodes, **arguments)
    row, col = (1, 0) if direction is Direction.INCOMING else (0, 1)
    order = np.argsort(edge_index[row].numpy(), kind="stable")
    for found in (graph, plain):
        assert found.col.dtype == found.rowptr.dtype == dtypes[1]
        assert found.col.tolist() == edge_index[col].numpy()[order].tolist()
        assert found.rowptr.diff().tolist() == np.bincount(edge_index[row], minlength=num_nodes[row]).tolist()
        assert (list(range(num_edges)) if found.perm is None else found.perm.tolist()) == order.tolist()


def test_a_graph_can_be_sent_to_another_process():
    graph = CompressedGraph.from_edge_index(EDGES, 4, edge_weight=torch.ones(4))
    copy = pickle.loads(pickle.dumps(graph))
    assert torch.equal(copy.col, graph.col)
    assert repr(copy) == repr(graph) == "CompressedGraph(4 rows, 4 edges to 4 nodes, incoming, int32, weight)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edge_index": torch.tensor([[4], [0]])}, r"edge_index\[0\] contains 4; indices must be in 0 ... 3"),
        ({"edge_index": torch.tensor([[0], [-1]])}, r"edge_index\[1\] contains -1"),
        ({"edge_index": torch.tensor([[0], [2**40]])}, "1099511627776"),
        ({"edge_index": torch.tensor([0, 1])}, r"\[2\]"),
        ({"edge_index": torch.zeros(3, 2, dtype=torch.long)}, r"\[3, 2\]"),
        ({"edge_index": torch.zeros(2, 1)}, "float32"),
        ({"num_nodes": -1}, "0 or more"),
        ({"num_nodes": (4, 3)}, r"edge_index\[1\] contains 3"),
        ({"direction": "sideways"}, "sideways"),
        ({"dtype": torch.int16}, "int16"),
        ({"dtype": torch.int32, "num_nodes": 2**31}, "need torch.int64"),
        ({"edge_weight": torch.ones(3)}, r"edge_weight has shape \(3,\)"),
        ({"edge_weight": torch.tensor([1, 1, 1, -1.0])}, "finite and 0"),
        ({"edge_weight": torch.tensor([1, 1, 1, float("nan")])}, "finite and 0"),
        ({"edge_weight": torch.tensor([1, 1, 1, float("inf")])}, "finite and 0"),
        ({"edge_weight": torch.tensor([1, 1, 1, 1e-305], dtype=torch.float64)}, "1e-300"),
        ({"edge_weight": torch.tensor([1, 1, 1, 1e300], dtype=torch.float64)}, "finite"),
        ({"node_time": torch.zeros(3, dtype=torch.long)}, r"node_time has shape \(3,\)"),
        ({"edge_time": torch.zeros(4)}, "whole numbers"),
        ({"edge_time": torch.zeros(4).long(), "node_time": torch.zeros(4).long()}, "Both node_time and edge_time"),
    ],
)
def test_a_wrong_graph_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CompressedGraph.from_edge_index(**({"edge_index": EDGES, "num_nodes": 4} | arguments))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rowptr": torch.tensor([0, 3, 2])}, "ascend from 0 to 2"),
        ({"rowptr": torch.tensor([1, 1, 2])}, "ascend"),
        ({"rowptr": torch.tensor([0, 1, 3])}, "ascend"),
        ({"rowptr": torch.tensor([], dtype=torch.long)}, "empty"),
        ({"rowptr": torch.tensor([0, 1, 2], dtype=torch.int32)}, "both int64"),
        ({"col": torch.tensor([0, 2])}, "col contains 2"),
        ({"col": torch.tensor([0, 9, 1])[::2]}, "contiguous"),
        ({"perm": torch.tensor([0, 2])}, "perm contains 2"),
        ({"perm": torch.tensor([0])}, r"\[1\]"),
        ({"weight": torch.tensor([1, 1])}, "weight is torch.int64"),
        ({"time": torch.tensor([1, 0]), "rowptr": torch.tensor([0, 2, 2])}, "falls inside a row"),
    ],
)
def test_a_graph_put_together_by_hand_is_checked(fields, message):
    right = {"rowptr": torch.tensor([0, 1, 2]), "col": torch.tensor([1, 0]), "num_cols": 2}
    CompressedGraph(**right)
    with pytest.raises(ValueError, match=message):
        CompressedGraph(**(right | fields))

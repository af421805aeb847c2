"""Collaters: contents of batches of one size, graphs that do not fit, several batches in one item."""

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import SumAggregation

from popgeo.compat import poptorch
from popgeo.compat.poptorch_geometric.collate import (
    CombinedBatchingCollater,
    FixedSizeCollater,
    FixedSizeError,
    make_exclude_keys,
)
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions
from popgeo.compat.poptorch_geometric.pyg_collate import Collater
from popgeo.compat.poptorch_geometric.types import DataBatch, HeteroDataBatch, call_once

EDGES = ("a", "to", "b")


def graph(num_nodes, **more):
    index = torch.stack([torch.arange(num_nodes - 1), torch.arange(1, num_nodes)])
    return Data(x=torch.full((num_nodes, 1), float(num_nodes)), edge_index=index, y=torch.tensor([0.5]), **more)


def typed(num_a, num_b):
    data = HeteroData(a={"x": torch.ones(num_a, 2)}, b={"x": torch.ones(num_b, 3)})
    data[EDGES].edge_index = torch.stack([torch.zeros(num_b, dtype=torch.long), torch.arange(num_b)])
    return data


def collate(graphs, *sizes, **choices):
    options = FixedSizeOptions(*sizes, **{k: choices.pop(k) for k in list(choices) if "pad" in k and "add" not in k})
    return FixedSizeCollater(options, **choices)(graphs)


def test_two_graphs_and_padding_by_hand():
    batch = collate([graph(2), graph(3)], 7, 5, 4, add_masks_to_batch=True, node_pad_value=9.0, graph_pad_value=7.0)
    assert isinstance(batch, DataBatch)
    assert batch.x.flatten().tolist() == [2, 2, 3, 3, 3, 9, 9]
    assert batch.edge_index.tolist() == [[0, 2, 3, 5, 5], [1, 3, 4, 5, 5]]
    assert batch.y.tolist() == [0.5, 0.5, 7, 7]
    assert batch.nodes_mask.tolist() == [True] * 5 + [False] * 2
    assert batch.edges_mask.tolist() == [True] * 3 + [False] * 2
    assert batch.graphs_mask.tolist() == [True, True, False, False]
    assert (batch.num_nodes, batch.num_edges, batch.num_graphs) == (7, 5, 4)


def test_the_list_stays_as_it_is_and_only_a_list_is_taken():
    graphs = [graph(2)]
    collate(graphs, 5, 5, 4)
    assert len(graphs) == 1
    with pytest.raises(TypeError, match=r"Expected list, got tuple\."):
        collate((graph(2),), 5, 5)


def test_padding_graphs_repeat_what_is_no_tensor_unless_told_otherwise():
    graphs = [graph(2, name="water", charge=2)]
    batch = collate(graphs, 5, 5, 3)
    assert (batch.name, batch.charge.tolist()) == (["water"] * 3, [2, 2, 2])
    batch = collate(graphs, 5, 5, 3, pad_graph_defaults={"name": "none", "charge": 3})
    assert (batch.name, batch.charge.tolist()) == (["water", "none", "none"], [2, 3, 3])


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (
            (4, 9, 9),
            "The fixed sizes given don't allocate enough space for the number of .* required .* Batch has 5 nodes",
        ),
        (
            (9, 2, 9),
            "The fixed sizes given don't allocate enough space for the number of .* required .* Batch has 3 edges",
        ),
        ((99, 99, 2), "Requested to pad a batch to 2 graphs but collater got a list of 2 graphs"),
    ],
)
def test_what_does_not_fit_is_said_when_the_batch_is_made(sizes, words):
    made = FixedSizeCollater(FixedSizeOptions(*sizes))
    with pytest.raises(RuntimeError, match=words):
        made([graph(2), graph(3)])
    with pytest.raises(ValueError, match="num_"):  # popgeo's class of errors
        made([graph(2), graph(3)])


def test_too_many_graphs_are_refused():
    with pytest.raises(RuntimeError, match="The maximum number of graphs requested doesn't allocate enough room for 3"):
        collate([graph(2)] * 3, 99, 99, 2)


@pytest.mark.parametrize("num_graphs", [2, 4])
def test_graphs_that_fill_a_batch_to_the_last_edge_need_no_padding(num_graphs):
    batch = collate([graph(2), graph(3)], 5, 3, num_graphs, add_masks_to_batch=True)
    assert batch.nodes_mask.all()
    assert batch.edges_mask.all()
    assert batch.graphs_mask.tolist() == [True, True] + [False] * (num_graphs - 2)
    assert batch.y.shape == (num_graphs,)  # even with unused slots for graphs
    assert [tuple(part.x.shape) for part in batch.to_data_list()[:2]] == [(2, 1), (3, 1)]


def test_padding_edges_end_outside_where_all_nodes_are_real_and_reading_them_is_an_error():
    batch = collate([graph(2), graph(3)], 5, 9, 3, add_masks_to_batch=True)
    assert batch.ptr.tolist() == [0, 2, 5, 5]
    assert batch.graphs_mask.tolist() == [True, True, False]
    assert batch.nodes_mask.all()
    assert (batch.edge_index[:, 3:] == 5).all()
    with pytest.raises(poptorch.Error, match=r"index\[3\] is 5; allowed are 0 to 4"):
        poptorch.inferenceModel(SumAggregation())(torch.ones(9, 1), batch.edge_index[0], dim_size=5)
    with pytest.raises(FixedSizeError, match="cannot create additional graphs"):
        collate([graph(2), graph(3)], 5, 9, 2)


def test_several_types_have_masks_in_their_stores_and_make_the_options_per_type():
    options = FixedSizeOptions(6, 8, 3)
    batch = FixedSizeCollater(options, add_masks_to_batch=True)([typed(2, 3), typed(1, 2)])
    assert options.num_nodes == {"a": 6, "b": 6}
    assert isinstance(batch, HeteroDataBatch)
    assert batch["a"].nodes_mask.tolist() == [True] * 3 + [False] * 3
    assert batch["b"].nodes_mask.tolist() == [True] * 5 + [False]
    assert batch[EDGES].edges_mask.sum() == 5
    assert batch[EDGES].edge_index.tolist() == [[0, 0, 0, 2, 2, 3, 3, 3], [0, 1, 2, 3, 4, 5, 5, 5]]
    with pytest.raises(RuntimeError, match="3 b nodes"):
        FixedSizeCollater(FixedSizeOptions({"a": 9, "b": 2}, 9))([typed(2, 3)])


def test_trimming_keeps_a_node_of_each_graph_and_leaves_no_trace_in_the_batch():
    torch.manual_seed(0)
    batch = collate([graph(5), graph(6)], 5, 9, 3, trim_nodes=True, add_masks_to_batch=True)
    assert batch.nodes_mask.sum() == 4
    assert set(batch.batch[batch.nodes_mask].tolist()) == {0, 1}
    assert "num_trimmed_nodes" not in batch
    batch = collate([graph(5), graph(6)], 12, 3, 3, trim_edges=True, add_masks_to_batch=True)
    assert (int(batch.edges_mask.sum()), int(batch.nodes_mask.sum())) == (3, 11)
    with pytest.raises(RuntimeError):
        collate([graph(5), graph(6), graph(5)], 3, 9, 4, trim_nodes=True)


def test_skipping_leaves_out_what_does_not_fit_beside_those_before_it():
    batch = collate([graph(2), graph(4), graph(3)], 6, 9, 4, skip=True, add_masks_to_batch=True)
    assert batch.x[batch.nodes_mask].flatten().tolist() == [2, 2, 3, 3, 3]
    empty = collate([graph(8)], 6, 9, 4, skip=True, add_masks_to_batch=True)
    assert not empty.graphs_mask.any()


def test_labels_belong_to_nodes_where_all_have_one_each():
    of_nodes = [Data(x=torch.ones(n, 1), edge_index=torch.empty(2, 0).long(), y=torch.arange(n)) for n in (2, 3)]
    assert collate(of_nodes, 7, 1, 3).y.tolist() == [0, 1, 0, 1, 2, 0, 0]
    tasks = [Data(x=torch.ones(n, 1), edge_index=torch.empty(2, 0).long(), y=torch.ones(1, 4)) for n in (1, 3)]
    assert collate(tasks, 7, 1, 3).y.shape == (3, 4)


def test_several_batches_are_joined_on_dimension_0():
    made = CombinedBatchingCollater(FixedSizeCollater(FixedSizeOptions(4, 3, 2)), mini_batch_size=1)
    batch = made([graph(2), graph(3)])
    assert batch.edge_index.tolist() == [[0, 2, 2], [1, 2, 2], [0, 1, 3], [1, 2, 3]]
    assert batch.batch.tolist() == [0, 0, 1, 1, 0, 0, 0, 1]
    assert (batch.num_nodes, batch.num_edges, batch.num_graphs) == (4, 3, 2)  # the sizes of one batch
    with pytest.raises(AssertionError, match=r"Invalid batch size\. Got 3 graphs and `mini_batch_size=2`"):
        CombinedBatchingCollater(Collater(), mini_batch_size=2)([graph(2)] * 3)


def test_plain_collaters_join_tensors_and_nests_too():
    made = CombinedBatchingCollater(torch.stack, mini_batch_size=2)
    assert made(list(torch.arange(4))).tolist() == [0, 1, 2, 3]
    made = CombinedBatchingCollater(lambda part: {"sum": torch.stack(part).sum()[None]}, mini_batch_size=2)
    assert made(list(torch.arange(4)))["sum"].tolist() == [1, 5]


def test_wanted_attributes_become_excluded_ones():
    assert set(make_exclude_keys(["x"], graph(2))) == {"edge_index", "y"}
    assert Collater(exclude_keys=make_exclude_keys(["x"], graph(2)))([graph(2)]).x.tolist() == [[2], [2]]
    assert "y" not in Collater(exclude_keys=("y", "none"))([graph(2)])


def test_classes_of_batches_are_pygs_own():
    assert type(Batch.from_data_list([graph(2)])) is DataBatch
    assert type(Batch.from_data_list([typed(1, 1)])) is HeteroDataBatch
    assert issubclass(FixedSizeError, RuntimeError)
    calls = []
    once = call_once(lambda: calls.append(1))
    once()
    once()
    assert calls == [1]


@pytest.mark.parametrize("count", [2, 3])
def test_graphs_are_pruned_to_the_nodes_or_edges_of_a_batch_and_none_becomes_empty(count):
    graphs = [graph(5)] * count
    by_nodes = FixedSizeCollater(FixedSizeOptions(num_nodes=4))._prune_nodes(graphs)
    assert sum(one.num_nodes for one in by_nodes) == 4
    assert all(one.num_nodes > 0 for one in by_nodes)
    by_edges = FixedSizeCollater(FixedSizeOptions(num_nodes=99, num_edges=3))._prune_edges(graphs)
    assert sum(one.num_edges for one in by_edges) == 3
    assert [one.num_nodes for one in by_edges] == [5] * count
    says = f"Too many nodes to trim. Batch has {count} graphs with {5 * count} total nodes. Requested to trim it to"
    with pytest.raises(RuntimeError, match=says):
        FixedSizeCollater(FixedSizeOptions(num_nodes=count - 1))._prune_nodes(graphs)


def test_the_collater_of_release_3_2_adds_a_graph_to_those_it_is_given():
    assert FixedSizeCollater(num_nodes=40)([graph(5)] * 3).num_graphs == 4
    assert FixedSizeCollater(num_nodes=40, num_graphs=None)([graph(5)]).num_graphs == 2

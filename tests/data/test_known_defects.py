"""Inputs that PopTorch Geometric gets wrong, each a claim about what happens here."""

import pytest
import torch
from torch_geometric.data import Data

from popgeo.data import FixedSizeCollater, FixedSizeOptions
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from popgeo.packing import Budget, stream
from tests.support.graphs import CITES, WRITES, assert_same_graphs, graph, hetero_graph


def test_padding_edges_never_leave_the_batch_even_if_a_single_node_is_padding(native):
    batch = FixedSizeCollater(FixedSizeOptions(6, 20, 9), True)([graph(3, 4), graph(2, 1)])
    assert int(batch.edge_index.max()) == 5
    assert (batch.edge_index[:, 5:] == 5).all()


def test_a_batch_without_room_for_a_padding_node_is_refused():
    with pytest.raises(ValueError, match="Raise num_nodes to 6"):
        FixedSizeCollater(FixedSizeOptions(5, 20, 9))([graph(3, 4), graph(2, 1)])


def test_shapes_stay_the_same_when_nodes_and_edges_fit_exactly(native):
    options = FixedSizeOptions(6, 5, 7)
    exact = FixedSizeCollater(options, True)([graph(3, 4), graph(2, 1)])
    loose = FixedSizeCollater(options, True)([graph(1, 0)])
    assert exact.num_graphs == loose.num_graphs == 7
    for name in exact.keys():  # noqa: SIM118
        assert len(exact[name]) == len(loose[name]), name
    assert exact.edges_mask.all()
    assert exact.graphs_mask.tolist() == [True] * 2 + [False] * 5


def test_heterogeneous_masks_are_true_for_real_rows_when_everything_fits_exactly(native):
    graphs = [hetero_graph(2, 3, 4, 2)]
    options = FixedSizeOptions({"a": 3, "b": 4}, {WRITES: 4, CITES: 2}, 2)
    batch = FixedSizeCollater(options, True)(graphs)
    assert batch["a"].nodes_mask.tolist() == [True, True, False]
    assert batch[WRITES].edges_mask.tolist() == [True] * 4


def test_the_callers_list_and_options_stay_as_they_were():
    graphs = [hetero_graph(2, 3, 4, 2)]
    options = FixedSizeOptions(9, 9, 4)
    FixedSizeCollater(options, True)(graphs)
    FixedSizeDataLoader(graphs, fixed_size_options=options)
    assert len(graphs) == 1
    assert_same_graphs(graphs, [hetero_graph(2, 3, 4, 2)])
    assert options == FixedSizeOptions(9, 9, 4)


def test_a_graph_that_fits_is_never_rejected_for_unused_slots():
    sizes = [[4, 0], [4, 0], [2, 0]]
    assert len(stream(sizes, Budget(sizes=(10, 0), num_graphs=8))) == 1
    loader = FixedSizeDataLoader(
        [Data(x=torch.ones(n, 1)) for n, _ in sizes],
        num_nodes=11,
        num_edges=0,
        batch_size=9,
        fixed_size_strategy="StreamPack",
    )
    assert len(loader) == 1


def test_stream_packing_keeps_a_budget_for_each_type():
    graphs = [hetero_graph(4, 1, 1, 1, seed) for seed in range(4)]
    options = FixedSizeOptions({"a": 9, "b": 20}, 20, 9)
    loader = FixedSizeDataLoader(graphs, fixed_size_options=options, fixed_size_strategy=FixedSizeStrategy.StreamPack)
    assert [int(batch["a"].nodes_mask.sum()) for batch in loader] == [8, 8]


def test_each_graph_is_read_once_to_be_laid_out_and_never_again():
    class Counting(list):
        reads = 0

        def __getitem__(self, index):
            Counting.reads += 1
            return super().__getitem__(index)

    loader = FixedSizeDataLoader(
        Counting([graph(3, 4), graph(2, 1)]), batch_size=2, shuffle=True, fixed_size_strategy="StreamPack"
    )
    for _ in range(3):
        assert len(loader) == len(list(loader))
    assert Counting.reads == 2


def test_an_incomplete_last_batch_is_delivered_like_any_other(native):
    batches = list(FixedSizeDataLoader([graph(3, 4)] * 5, batch_size=4, options=2))
    assert len(batches) == 1
    assert int(batches[0].graphs_mask.sum()) == 5

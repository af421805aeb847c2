"""What does and what does not fit a batch, and batches cut several at a time."""

import pytest
import torch
from torch_geometric.data import Data

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore
from popgeo.data.axes import Level
from popgeo.data.batch_layout import lay_out
from popgeo.data.cut import BatchCutter, BatchMemory, fills_exactly
from popgeo.data.super_batch import join
from popgeo.packing import Packs
from tests.support.graphs import graph, hetero_graph, same


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
    ("options", "remedy"),
    [
        (FixedSizeOptions(5, 9, 4), "Raise num_nodes to 6 or pass OverSizeStrategy.TrimNodes."),
        (FixedSizeOptions(9, 4, 4), "Raise num_edges to 5 or pass OverSizeStrategy.TrimEdges."),
        (FixedSizeOptions(9, 9, 2), "Raise it to 3 or pass fewer graphs."),
    ],
)
def test_the_remedy_is_enough_and_no_less_would_be(options, remedy):
    with pytest.raises(ValueError, match="Batch has") as error:
        FixedSizeCollater(options)([graph(3, 4), graph(2, 1)])
    assert str(error.value).endswith(remedy)
    FixedSizeCollater(FixedSizeOptions(6, 5, 3))([graph(3, 4), graph(2, 1)])


def test_the_largest_graph_and_the_type_of_what_is_too_much_are_named():
    with pytest.raises(ValueError, match=r"7 b nodes, .*num_nodes\['b'\] is 3.*largest graph is 1 with 5"):
        FixedSizeCollater(FixedSizeOptions({"a": 9, "b": 3}, 20, 3))(
            [hetero_graph(2, 2, 1, 1), hetero_graph(2, 5, 1, 1)]
        )


def test_graphs_fill_a_batch_exactly_where_nothing_is_left_over():
    store = FlatStore.from_dataset([graph(3, 4), graph(2, 1)])
    assert [fills_exactly(store, FixedSizeOptions(*sizes)) for sizes in ((5, 5, 2), (5, 5, 3))] == [True, True]
    assert not any(fills_exactly(store, FixedSizeOptions(*sizes)) for sizes in ((6, 5, 2), (5, 6, 2)))
    three = FlatStore.from_dataset([graph(3, 4), graph(1, 1), graph(1, 0)])
    assert fills_exactly(three, FixedSizeOptions(5, 5, 3))
    assert not fills_exactly(three, FixedSizeOptions(5, 5, 2))


def test_rows_of_graphs_may_fill_their_slots_to_the_last_one():
    graphs = [Data(x=torch.ones(2, 1), rings=torch.ones(n, 1)) for n in (1, 3)]
    collate = FixedSizeCollater(FixedSizeOptions(9, 0, 3, num_rows={"rings": 4}), levels={"rings": Level.GRAPH})
    assert len(collate(graphs).rings) == 4


def test_batches_cut_in_groups_are_those_joined_one_by_one(native):
    store = FlatStore.from_dataset([graph(2, 1), graph(3, 4), graph(1, 0), graph(2, 2)])
    layout = lay_out(store, FixedSizeOptions(6, 6, 4))
    packs = Packs.from_lists([[0, 1], [2], [3, 2], [1]])
    ones, pairs = BatchCutter(store, layout).cut(packs), BatchCutter(store, layout).cut(packs, group=2)
    assert [batch.num_graphs for batch in ones] == [4] * 4
    assert len(pairs) == 2
    for pair, (first, second) in zip(pairs, (ones[:2], ones[2:]), strict=True):
        joined = join([first, second])
        assert {name for name, value in joined if isinstance(value, torch.Tensor)} >= {"x", "edge_index", "nodes_mask"}
        assert all(same(pair[name], value) for name, value in joined if isinstance(value, torch.Tensor))


def test_memory_for_more_batches_than_there_are_packs_is_used_from_its_start(native):
    store = FlatStore.from_dataset([graph(2, 1), graph(3, 4)])
    cutter = BatchCutter(store, lay_out(store, FixedSizeOptions(6, 6, 4)))
    memory = BatchMemory(cutter.layout, 3)
    batches = cutter.cut(Packs.from_lists([[0], [1]]), memory)
    assert len(batches) == 2
    assert [batch.x.data_ptr() for batch in batches] == [item[0].data_ptr() for item in memory.items[:2]]

"""Several batches as one item: joined, cut as one at once, and taken apart again."""

import pytest
import torch
from torch_geometric.data import Batch, HeteroData

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore
from popgeo.data.batch_layout import lay_out
from popgeo.data.cut import BatchCutter
from popgeo.data.super_batch import join, split
from popgeo.packing import Packs
from tests.support.graphs import CITES, WRITES, assert_same_graphs, graph, hetero_graph, same

ONE = ([graph(n, 2 * n - 1, n) for n in (3, 1, 2, 4)], FixedSizeOptions(8, 9, 4))
TYPES = FixedSizeOptions({"a": 7, "b": 9}, {WRITES: 6, CITES: 12}, 4)
HETERO = ([hetero_graph(n, 4 - n, n, 2 * n, n) for n in (1, 3, 2, 1)], TYPES)
PACKS = [[0, 1], [2], [3], [1, 2]]


def assert_same_batches(found: Batch, expected: Batch) -> None:
    for own, other in zip(found.stores, expected.stores, strict=True):
        assert set(own.keys()) == set(other.keys())
        assert all(same(own[name], value) for name, value in other.items())
    assert (found.num_nodes, found.num_edges, found.num_graphs) == (
        expected.num_nodes,
        expected.num_edges,
        expected.num_graphs,
    )


@pytest.mark.parametrize("whole", [ONE, HETERO], ids=["one", "hetero"])
def test_an_item_is_taken_apart_into_its_batches(native, whole):
    graphs, options = whole
    collate = FixedSizeCollater(options, add_masks_to_batch=True)
    single = [collate([graphs[i] for i in pack]) for pack in PACKS]
    store = FlatStore.from_dataset(graphs)
    cutter = BatchCutter(store, lay_out(store, options))
    cut = cutter.cut(Packs.from_lists(PACKS), group=2)
    for item, of_item, packs in zip(
        [join(single[:2]), join(single[2:]), *cut],
        [single[:2], single[2:]] * 2,
        [PACKS[:2], PACKS[2:]] * 2,
        strict=True,
    ):
        assert item.num_nodes == single[0].num_nodes
        assert item.num_edges == single[0].num_edges
        assert item.num_graphs == 4
        for own, others in zip(item.stores, zip(*(one.stores for one in of_item), strict=True), strict=True):
            for name, value in own.items():
                parts = [other[name] for other in others if name in other]
                if isinstance(value, torch.Tensor):
                    assert same(value, torch.cat(parts)), name
                elif isinstance(value, list):
                    assert value == [entry for part in parts for entry in part]
        parts = split(item)
        assert len(parts) == 2
        for part, expected, pack in zip(parts, of_item, packs, strict=True):
            assert_same_batches(part, expected)
            assert_same_graphs(part.to_data_list()[: len(pack)], [graphs[i] for i in pack])
    assert not {"_mini_batches"} & set(single[0].stores[0].__dict__)


def test_an_item_of_one_batch_is_that_batch():
    batch = FixedSizeCollater(ONE[1])(ONE[0][:1])
    (part,) = split(join([batch]))
    assert_same_batches(part, batch)


def test_a_batch_of_no_graphs_has_the_first_names_of_the_dataset(native):
    store = FlatStore.from_dataset(ONE[0])
    (batch,) = BatchCutter(store, lay_out(store, ONE[1])).cut(Packs.from_lists([[]]))
    assert batch.name == ["graph 3"] * 4
    assert not batch.nodes_mask.any()


def test_one_batch_is_not_to_be_split():
    with pytest.raises(
        ValueError, match="The batch is a single batch, not several joined batches; there is nothing to split"
    ):
        split(FixedSizeCollater(ONE[1])(ONE[0][:1]))


def test_batches_of_graphs_that_state_their_nodes_state_theirs(native):
    graphs = HETERO[0][:2]
    batch = FixedSizeCollater(TYPES)(graphs)
    assert isinstance(batch, HeteroData)
    assert (batch["b"].num_nodes, "num_nodes" in batch["a"], "num_edges" in batch[WRITES]) == (9, False, False)
    item = join([batch, batch])
    assert {key: item[key].num_nodes for key in ("a", "b")} == {"a": 7, "b": 9}
    assert {key: item[key].num_edges for key in (WRITES, CITES)} == {WRITES: 6, CITES: 12}
    assert "_num_nodes" not in item["b"].__dict__
    assert not {"_slice_dict", "_inc_dict"} & item.stores[0].__dict__.keys()
    assert {"_slice_dict", "_inc_dict"} < batch.stores[0].__dict__.keys()
    for part in split(item):
        assert (part["b"].num_nodes, part["b"]._num_nodes) == (9, batch["b"]._num_nodes)
        assert "num_nodes" not in part["a"]._mapping
        assert_same_graphs(part.to_data_list()[:2], graphs)


def test_a_batch_has_the_parts_of_one_made_by_pyg_itself():
    for graphs, options in (ONE, HETERO):
        made, expected = FixedSizeCollater(options)(graphs[:2]), Batch.from_data_list(graphs[:2])
        assert made.__dict__.keys() == expected.__dict__.keys()
        for own, other in zip(made.stores, expected.stores, strict=True):
            assert (isinstance(own, type(other)), own._key, own._parent()) == (True, other._key, made)

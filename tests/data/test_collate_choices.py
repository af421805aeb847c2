"""What the collater is asked for beside plain batches: an exact fit, trimming and its account, sorted edges."""

import pickle

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore, unpad
from popgeo.data.cut import check_fits, fills_exactly
from popgeo.data.open_dataset import _KEPT, GraphSizes, first_graphs
from popgeo.data.sort_edges import sort_edges
from popgeo.packing import Packs
from tests.support import loaders
from tests.support.graphs import WRITES, assert_real_part_equals, assert_same_graphs, graph, hetero_graph
from tests.support.loaders import InMemory, OnDisk

GRAPHS = [graph(3, 4), graph(2, 1, 1)]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("num_graphs", [2, 3])
@pytest.mark.parametrize("trims", [False, True])
def test_graphs_that_fill_every_slot_make_a_batch_without_padding_when_asked_for(native, num_graphs, trims):
    options = FixedSizeOptions(5, 5, num_graphs)
    collate = FixedSizeCollater(options, True, trims, trims, exact_fit=True, generator=seeded())
    batch = collate(GRAPHS)
    assert_real_part_equals(batch, GRAPHS)
    assert_same_graphs(batch.to_data_list()[:2] if not trims else [], GRAPHS if not trims else [])
    assert batch.nodes_mask.all()
    assert batch.edges_mask.all()
    assert batch.graphs_mask.tolist() == [True] * 2 + [False] * (num_graphs - 2)
    assert batch.ptr.tolist() == [0, 3, 5, *[5] * (num_graphs - 2)]
    if trims:
        assert not batch.num_trimmed_nodes.any()
    if trims and num_graphs == 3:
        without = {"exclude_keys": ["root_index"], "exact_fit": True}  # it counts nodes
        lost = FixedSizeCollater(options, True, True, True, **without)([graph(4, 4), graph(2, 1)])
        assert (int(lost.num_trimmed_nodes.sum()), int(lost.nodes_mask.sum())) == (2, 4)


@pytest.mark.parametrize("spread", [False, True])
def test_graphs_that_fill_every_slot_have_row_pointers_too(native, spread):
    collate = FixedSizeCollater(FixedSizeOptions(5, 5, 3), sort_edges=True, spread_padding_edges=spread, exact_fit=True)
    batch = collate(GRAPHS)
    counts = torch.bincount(batch.edge_index[1], minlength=5)
    assert batch.rowptr.tolist() == [0, *counts.cumsum(0).tolist()]


def test_an_exact_fit_that_was_not_asked_for_is_refused_or_trimmed():
    with pytest.raises(ValueError, match=r"5 nodes, FixedSizeOptions[.]num_nodes is 5 with one kept"):
        FixedSizeCollater(FixedSizeOptions(5, 5, 3))(GRAPHS)
    with pytest.raises(ValueError, match=r"2 graphs, FixedSizeOptions[.]num_graphs is 2 with one kept"):
        FixedSizeCollater(FixedSizeOptions(4, 5, 2), exact_fit=True)([graph(2, 2), graph(2, 2)])
    trims = FixedSizeCollater(FixedSizeOptions(5, 5, 3), True, True, exclude_keys=["root_index"], generator=seeded())
    batch = trims(GRAPHS)
    assert batch.num_trimmed_nodes.sum() == 1


def test_what_each_graph_has_lost_is_told_only_where_something_may_be_lost():
    keys = {"num_trimmed_nodes", "num_trimmed_edges"}
    for nodes, edges in ((False, False), (True, False), (False, True), (True, True)):
        batch = FixedSizeCollater(FixedSizeOptions(9, 9, 4), True, nodes, edges)(GRAPHS)
        assert keys & set(batch.keys()) == (keys if nodes or edges else set())
        if nodes or edges:
            assert batch.num_trimmed_nodes.tolist() == batch.num_trimmed_edges.tolist() == [0] * 4
    batch = FixedSizeCollater(FixedSizeOptions(9, 3, 4), True, False, True, generator=seeded())(GRAPHS)
    left = [part.num_edges for part in unpad(batch)]
    assert batch.num_trimmed_edges.tolist() == [4 - left[0], 1 - left[1], 0, 0]
    assert sum(left) <= 3
    assert batch.num_trimmed_nodes.tolist() == [0] * 4
    with pytest.raises(ValueError, match="After trimming, 5 edges are left and 3 fit"):
        FixedSizeCollater(FixedSizeOptions(9, 3, 4), True, True, False)(GRAPHS)


def test_protected_nodes_stay_and_the_generator_decides_the_rest():
    whole = Data(x=torch.arange(8), edge_index=torch.zeros(2, 0).long(), seed=torch.arange(8) % 2 == 1)
    kept = [
        FixedSizeCollater(FixedSizeOptions(6, 0, 2), True, True, protect="seed", generator=generator)([whole]).x[:5]
        for generator in (seeded(), seeded(), torch.Generator().manual_seed(5))
    ]
    assert all({1, 3, 5, 7} < set(x.tolist()) for x in kept)
    assert kept[0].tolist() == kept[1].tolist()
    torch.manual_seed(0)
    first = FixedSizeCollater(FixedSizeOptions(6, 0, 2), True, True)([whole]).x
    torch.manual_seed(0)
    assert FixedSizeCollater(FixedSizeOptions(6, 0, 2), True, True)([whole]).x.tolist() == first.tolist()


def test_a_collater_leaves_out_stretches_and_follows_as_it_is_told():
    collate = FixedSizeCollater(
        FixedSizeOptions(9, 9, 4), follow_batch=["x"], exclude_keys=["pos"], index_dtype=torch.int32
    )
    batch = collate(tuple(GRAPHS))
    assert ("pos" in batch, batch.x_ptr.dtype, batch.edge_index.dtype) == (False, torch.int32, torch.int32)
    assert "nodes_mask" not in batch
    assert batch.edge_index[:, 5:].tolist() == [[5] * 4] * 2
    assert "rowptr" not in batch
    assert_real_part_equals(FixedSizeCollater(FixedSizeOptions(9, 9, 4))(Batch.from_data_list(GRAPHS)), GRAPHS)


def test_batches_that_do_not_fit_are_named_by_their_largest_graph_and_type():
    store = FlatStore.from_dataset([hetero_graph(n, 1, n, 1, n) for n in (1, 4, 2)])
    options = FixedSizeOptions({"a": 7, "b": 9}, dict.fromkeys(store.edge_types, 6), 3)
    check_fits(store, options, Packs.from_lists([[0, 1], [1, 2], [0, 2]]))
    check_fits(store, options, Packs.from_lists([]))
    with pytest.raises(ValueError, match=r"Batch has 3 graphs, FixedSizeOptions.num_graphs is 3 .* Raise it to 4"):
        check_fits(store, options, Packs.from_lists([[0], [0, 0, 0]]))
    message = (
        "Batch has 8 a nodes, FixedSizeOptions.num_nodes['a'] is 7 with one kept for padding: 2 too many. "
        "Its largest graph is 1 with 4. Raise num_nodes['a'] to 9 or pass OverSizeStrategy.TrimNodes."
    )
    with pytest.raises(ValueError, match="Batch has 8 a nodes") as error:
        check_fits(store, options, Packs.from_lists([[0, 2], [1, 1]]))
    assert str(error.value) == message
    edges = FixedSizeOptions({"a": 17, "b": 9}, dict.fromkeys(store.edge_types, 5), 9)
    with pytest.raises(ValueError, match="Batch has 6 a-writes-b edges") as error:
        check_fits(store, edges, Packs.from_lists([[0, 2], [2, 1]]))
    assert str(error.value) == (
        f"Batch has 6 a-writes-b edges, FixedSizeOptions.num_edges[{WRITES!r}] is 5: 1 too many. Its largest "
        f"graph is 1 with 4. Raise num_edges[{WRITES!r}] to 6 or pass OverSizeStrategy.TrimEdges."
    )


def test_rows_that_do_not_fit_are_refused():
    store = FlatStore.from_dataset([Data(x=torch.ones(2, 1), rings=torch.ones(n)) for n in (1, 3, 4)])
    options = FixedSizeOptions(9, 0, 4, num_rows={"rings": 5})
    check_fits(store, options, Packs.from_lists([[0, 2], [0, 1]]))
    check_fits(store, FixedSizeOptions(9, 0, 4, num_rows={"other": 1}), Packs.from_lists([[1, 2]]))
    with pytest.raises(ValueError, match=r"Batch has 7 rows of 'rings', .*num_rows\['rings'\] is 5. Raise it to 7"):
        check_fits(store, options, Packs.from_lists([[0], [1, 2]]))


def test_types_fill_a_batch_exactly_only_all_together():
    store = FlatStore.from_dataset([hetero_graph(2, 3, 4, 1)])
    keys = store.edge_types
    for sizes, fills in (((2, 3, 4, 1), True), ((3, 3, 4, 1), False), ((2, 3, 4, 2), False)):
        nodes, edges = dict(zip("ab", sizes[:2], strict=True)), dict(zip(keys, sizes[2:], strict=True))
        assert fills_exactly(store, FixedSizeOptions(nodes, edges, 2)) is fills


def test_edges_to_nodes_that_are_not_there_are_named_when_they_are_sorted():
    for wrong in (-1, 3):
        graphs = [hetero_graph(2, 3, 2, 1), hetero_graph(2, 3, 2, 1)]
        graphs[1][WRITES].edge_index[1, 1] = wrong
        message = rf"Graph 1 has {wrong} in edge_index of \('a', 'writes', 'b'\)\[1\], but 3 nodes, numbered from 0"
        with pytest.raises(ValueError, match=message):
            sort_edges(FlatStore.from_dataset(graphs, validate=False))
    fine = hetero_graph(2, 3, 2, 1)
    fine[WRITES].edge_index = torch.tensor([[1, 0], [2, 0]])
    assert sort_edges(FlatStore.from_dataset([fine], validate=False)).row_ends[WRITES].tolist() == [1, 1, 2]


def test_sizes_are_read_once_for_a_dataset_and_anew_for_another_transform():
    dataset = OnDisk()
    asked = []
    dataset.get = lambda i: asked.append(i) or loaders.GRAPHS[i]
    expected = [[dataset[i].num_nodes, dataset[i].num_edges] for i in range(40)]
    asked.clear()
    sizes = GraphSizes(dataset, progress_bar=False)
    assert (len(sizes), sizes.are_known) == (40, False)
    assert sizes.values.tolist() == expected
    assert (sizes.are_known, len(asked)) == (True, 40)
    again = GraphSizes(dataset)
    assert (again.are_known, again.values.tolist(), len(asked)) == (True, expected, 40)
    without = GraphSizes(dataset, ["edge_index", "edge_attr"])
    assert not without.are_known
    assert without.values.tolist() == [[nodes, 0] for nodes, _ in expected]
    dataset.transform = lambda data: Data(x=data.x[:1])
    changed = GraphSizes(dataset)
    assert not changed.are_known
    assert changed.values.tolist() == [[1, 0]] * 40
    assert dataset in _KEPT
    num_kept = len(_KEPT)
    dataset.get = None  # which holds the dataset itself
    del dataset, sizes, again, without, changed
    assert len(_KEPT) == num_kept - 1


def test_sizes_that_are_given_are_not_read():
    known = np.array([[3, 4]])
    sizes = GraphSizes(None, known=known)
    assert (len(sizes), sizes.are_known, sizes.values is known) == (1, True, True)
    assert GraphSizes(InMemory(GRAPHS)).values.tolist() == [[3, 4], [2, 1]]
    assert pickle.loads(pickle.dumps(GraphSizes(GRAPHS)))._progress_bar is False
    with pytest.raises(ValueError, match=r"The dataset \(list\) is empty; a batch needs at least one graph"):
        GraphSizes([]).values  # noqa: B018


def test_the_first_graphs_are_as_many_as_are_asked_for_or_there():
    assert len(first_graphs(GRAPHS, 1, None)) == 1
    assert len(first_graphs(GRAPHS, 5, ["x"])) == 2
    assert [axis.label for axis in first_graphs([hetero_graph(1, 1, 1, 1)], 1, None).size_axes] == [
        "a nodes", "b nodes", "a-writes-b edges", "b-cites-b edges",
    ]  # fmt: skip

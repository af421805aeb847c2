"""Sizes of a batch: given, measured from a dataset or from a loader."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.transforms.pad import AttrNamePadding

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore, Level
from popgeo.data.open_dataset import GraphSizes, OpenDataset
from popgeo.loader import FixedSizeDataLoader
from tests.support.graphs import CITES, WRITES, graph, hetero_graph
from tests.support.loaders import OnDisk

GRAPHS = [graph(3, 4), graph(5, 2, 1), graph(2, 0, 2)]


def test_defaults_are_those_of_poptorch_geometric():
    options = FixedSizeOptions(num_nodes=10)
    assert (options.num_edges, options.num_graphs) == (90, 2)
    assert not options.is_hetero()
    assert FixedSizeOptions({"a": 3, "b": 2}, {CITES: 4}).is_hetero()
    assert FixedSizeOptions({"a": 3, "b": 2}).num_edges == 20
    assert FixedSizeOptions({"a": 3, "b": 2}, {CITES: 4, WRITES: 1}).total_num_edges == 5


def test_no_edges_can_be_asked_for():
    assert FixedSizeOptions(10, 0).num_edges == 0


def test_options_are_equal_by_value_and_never_change():
    options = FixedSizeOptions(9, 9, 3)
    assert options == FixedSizeOptions(9, 9, 3)
    hetero = options.to_hetero(["a", "b"], [CITES])
    assert hetero.num_nodes == {"a": 9, "b": 9}
    assert options.num_nodes == 9
    with pytest.raises(AttributeError):
        options.num_nodes = 3


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((9, 9, 1), "num_graphs is 1"),
        ((0, 9), "num_nodes is 0"),
        (({"a": 0}, 9), r"num_nodes\['a'\] is 0"),
        ((9, -1), "num_edges is -1"),
    ],
)
def test_sizes_that_hold_nothing_are_refused(arguments, found):
    with pytest.raises(ValueError, match=found):
        FixedSizeOptions(*arguments)


def test_measured_sizes_hold_the_largest_graphs_and_the_padding():
    options = FixedSizeOptions.from_dataset(GRAPHS, batch_size=4)
    assert (options.num_nodes, options.num_edges, options.num_graphs) == (5 * 3 + 1, 4 * 3 + 1, 4)
    FixedSizeCollater(options)([GRAPHS[1]] * 3)
    hetero = FixedSizeOptions.from_dataset([hetero_graph(2, 3, 4, 0)], batch_size=2)
    assert hetero.num_nodes == {"a": 3, "b": 4}
    assert hetero.num_edges == {WRITES: 5, CITES: 0}


def test_a_limit_on_the_sample_is_kept():
    assert FixedSizeOptions.from_dataset(GRAPHS, 2, sample_limit=1).num_nodes == 4
    assert FixedSizeOptions.from_dataset(FlatStore.from_dataset(GRAPHS), 2, sample_limit=1).num_nodes == 4


def test_a_loader_is_measured_in_one_pass_and_not_replayed():
    class Counting(list):
        reads = 0

        def __getitem__(self, index):
            Counting.reads += 1
            return super().__getitem__(index)

    options = FixedSizeOptions.from_loader(DataLoader(Counting(GRAPHS), batch_size=2))
    assert (options.num_nodes, options.num_edges, options.num_graphs) == (9, 7, 3)
    assert Counting.reads == 3
    assert FixedSizeOptions.from_loader(DataLoader(GRAPHS, batch_size=1), sample_limit=1).num_nodes == 4
    hetero = FixedSizeOptions.from_loader(DataLoader([hetero_graph(2, 3, 4, 1)]))
    assert (hetero.num_nodes, hetero.num_edges) == ({"a": 3, "b": 4}, {WRITES: 5, CITES: 2})


def test_an_empty_loader_is_refused():
    with pytest.raises(ValueError, match="yields no batch"):
        FixedSizeOptions.from_loader([])


def test_tuned_sizes_say_what_was_chosen_and_why(capsys):
    options = FixedSizeOptions.tune([graph(9 + i % 7, 2 * (9 + i % 7), i) for i in range(400)], target_graphs=8)
    assert f"{options.num_nodes} nodes, {options.num_edges} edges" in capsys.readouterr().out
    assert options.num_nodes % 8 == 0


def test_pad_values_go_to_their_level(native):
    options = FixedSizeOptions(
        6,
        6,
        3,
        node_pad_value=AttrNamePadding({"x": 7.0}, default=1),
        edge_pad_value=-1,
        graph_pad_value=2.5,
        pad_graph_defaults={"name": "none", "charge": 9},
    )
    batch = FixedSizeCollater(options)([graph(3, 4)])
    assert (batch.x[3:] == 7).all()
    assert (batch.pos[3:] == 1).all()
    assert (batch.edge_attr[4:] == -1).all()
    assert (batch.y[1:] == 2.5).all()
    assert batch.name == ["graph 0", "none", "none"]
    assert batch.charge.tolist() == [0, 9, 9]
    assert not batch.train_mask[3:].any()


def test_graph_attributes_of_varying_length_get_room_for_the_longest(native):
    graphs = [Data(x=torch.ones(4, 1), rings=torch.arange(n)) for n in (1, 3, 0)]
    loader = FixedSizeDataLoader(graphs, 3)
    assert loader.fixed_size_options.num_rows == {"rings": 7}
    assert [batch.rings.shape[0] for batch in loader] == [7, 7]
    with pytest.raises(ValueError, match=r"Batch has 4 rows of 'rings', FixedSizeOptions.num_rows\['rings'\] is 3"):
        len(FixedSizeDataLoader(graphs, fixed_size_options=FixedSizeOptions(9, 0, 3, num_rows={"rings": 3})))


def test_sizes_are_raised_to_multiples_for_each_type_and_never_lowered():
    sizes = FixedSizeOptions({"paper": 9, "author": 64}, {("author", "writes", "paper"): 65}, num_graphs=3)
    rounded = sizes.round_to(64)
    assert rounded.num_nodes == {"paper": 64, "author": 64}
    assert rounded.num_edges == {("author", "writes", "paper"): 128}
    assert rounded.num_graphs == 3
    assert sizes.round_to(1) == sizes


@pytest.mark.parametrize("multiple", [0, -8, 2.5, True])
def test_sizes_are_rounded_to_whole_numbers_only(multiple: object):
    with pytest.raises(ValueError, match="an integer of at least 1"):
        FixedSizeOptions(8, 8, 2).round_to(multiple)


def test_a_loader_of_single_graphs_counts_one_graph_a_batch_and_the_largest_of_each_size():
    graphs = [Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, e).long()) for n, e in ((5, 1), (3, 4), (9, 9))]
    assert FixedSizeOptions.from_loader(graphs, 2) == FixedSizeOptions(6, 5, 2)
    assert FixedSizeOptions.from_loader([Data(num_nodes=0)]) == FixedSizeOptions(1, 1, 2)
    assert FixedSizeOptions.from_loader(graphs) == FixedSizeOptions(10, 10, 2)


def test_sizes_for_less_than_a_graph_and_its_padding_are_refused():
    with pytest.raises(ValueError, match="batch_size is 1; it includes the padding graph, so pass 2 or more"):
        FixedSizeOptions.from_dataset(GRAPHS, batch_size=1)
    assert FixedSizeOptions.from_dataset(GRAPHS, batch_size=2) == FixedSizeOptions(6, 5, 2)


def test_a_sample_may_be_larger_than_the_dataset():
    assert FixedSizeOptions.from_dataset(GRAPHS, 2, sample_limit=9) == FixedSizeOptions(6, 5, 2)
    assert FixedSizeOptions.from_dataset(GRAPHS[::-1], 2, sample_limit=2) == FixedSizeOptions(6, 3, 2)
    assert FixedSizeOptions.from_dataset(FlatStore.from_dataset(GRAPHS[::-1]), 2, sample_limit=2).num_edges == 3


def test_a_dataset_that_makes_its_graphs_is_measured_whole():
    assert FixedSizeOptions.from_dataset(OnDisk(), 3, node_pad_value=2.0) == FixedSizeOptions(
        13, 19, 3, node_pad_value=2.0
    )


def test_sizes_of_nothing_keep_a_node_for_padding():
    assert FixedSizeOptions.from_dataset([Data(num_nodes=0)], 3) == FixedSizeOptions(1, 0, 3)
    assert FixedSizeOptions.from_dataset([Data(num_nodes=1)], 3) == FixedSizeOptions(3, 0, 3)


def test_a_loader_is_measured_for_a_thousand_batches():
    batches = [Data(num_nodes=1)] * 999 + [Data(num_nodes=5), Data(num_nodes=9)]
    assert FixedSizeOptions.from_loader(batches).num_nodes == 6


def test_sizes_are_given_per_type_only_where_both_are():
    assert not FixedSizeOptions({"a": 3}, 4).is_hetero()
    assert not FixedSizeOptions(3, {CITES: 4}).is_hetero()
    hetero = FixedSizeOptions({"a": 3, "b": 2}, 4).to_hetero(["b"], [CITES, WRITES])
    assert (hetero.num_nodes, hetero.num_edges) == ({"b": 2}, {CITES: 4, WRITES: 4})
    with pytest.raises(ValueError, match=r"num_edges has no entry for \('b', 'cites', 'b'\).*writes.*Add one"):
        FixedSizeOptions(3, {WRITES: 4}).to_hetero(["a"], [CITES])


def test_what_graphs_may_use_is_all_but_a_node_of_each_type():
    store = FlatStore.from_dataset([hetero_graph(2, 3, 4, 1)])
    assert FixedSizeOptions({"a": 3, "b": 7}, {WRITES: 4, CITES: 1}).limits(store.size_axes).tolist() == [2, 6, 4, 1]


def test_rows_of_a_graphs_attributes_are_told_or_found():
    graphs = [Data(x=torch.ones(9, 1), rings=torch.ones(n), tasks=torch.ones(3)) for n in (2, 4)]
    store = FlatStore.from_dataset(graphs)
    axes = {axis.name: axis for axis in store.row_pointers}
    options = FixedSizeOptions(20, 0, 5)
    assert options.rows(axes["tasks"], store) == 15
    with pytest.raises(ValueError, match=r"'rings' has 2 to 4 rows per graph.*num_rows=\{'rings': 17\}"):
        options.rows(axes["rings"], store)
    room = options.with_rows_for(store)
    assert room.num_rows == {"rings": 17}
    assert room.rows(axes["rings"], store) == 17
    given = FixedSizeOptions(20, 0, 5, num_rows={"rings": 9, "tasks": 20})
    assert given.with_rows_for(store).num_rows == {"rings": 9, "tasks": 20}
    assert (given.rows(axes["rings"], store), given.rows(axes["tasks"], store)) == (9, 20)
    even = FlatStore.from_dataset(graphs[:1])
    assert options.with_rows_for(even) is options


def test_defaults_of_padding_graphs_fill_no_nodes():
    options = FixedSizeOptions(6, 6, 3, node_pad_value=4, pad_graph_defaults={"x": 9, "y": 8})
    assert options.pad_value(Level.NODE, None, "x") == 4
    assert [options.pad_value(Level.GRAPH, None, name) for name in ("x", "y", "charge")] == [9, 8, 0]
    assert options.pad_value(Level.EDGE, None, "edge_attr") == 0
    assert [options.pad_value(Level.NODE, None, name) for name in ("train_mask", "n_id")] == [0, 0]


def test_tuned_sizes_are_silent_when_told_to_be_and_named_by_their_types_otherwise(capsys):
    graphs = [hetero_graph(2 + i % 3, 3 + i % 2, 4 + i % 5, 1 + i % 2, i) for i in range(60)]
    quiet = FixedSizeOptions.tune(graphs, target_graphs=8, verbose=False, edge_pad_value=7)
    assert capsys.readouterr().out == ""
    loud = FixedSizeOptions.tune(graphs, target_graphs=8, edge_pad_value=7)
    assert loud == quiet
    assert loud.edge_pad_value == 7
    text = capsys.readouterr().out
    assert "size_" not in text
    for (source, kind, end), count in loud.num_edges.items():
        assert f"{count} {source}-{kind}-{end} edges" in text
    assert all(f"{count} {kind} nodes" in text for kind, count in loud.num_nodes.items())
    assert {count % 8 for count in (*loud.num_nodes.values(), *loud.num_edges.values())} == {0}
    assert FixedSizeOptions.tune(graphs, target_graphs=8, align=1, verbose=False).num_nodes != loud.num_nodes


def test_the_smallest_rounding_is_none():
    sizes = FixedSizeOptions(9, 0, 3, node_pad_value=2)
    assert sizes.round_to(1) == sizes
    assert sizes.round_to(2) == FixedSizeOptions(10, 0, 3, node_pad_value=2)


def test_a_measured_dataset_that_makes_its_graphs_is_read_once_for_all():
    dataset = OnDisk()
    FixedSizeOptions.from_dataset(dataset, 3)
    assert GraphSizes(dataset).are_known


@pytest.mark.parametrize(("verbose", "bar"), [(True, None), (False, False)])
def test_a_bar_is_shown_only_where_words_are(monkeypatch, verbose, bar):
    asked, of = [], OpenDataset.of
    monkeypatch.setattr(OpenDataset, "of", lambda *given, progress_bar: asked.append(progress_bar) or of(*given))
    FixedSizeOptions.tune(GRAPHS * 9, target_graphs=3, verbose=verbose)
    assert asked == [bar]


def test_of_a_sample_no_other_graph_is_read():
    dataset, asked = OnDisk(), set()
    get = dataset.get
    dataset.get = lambda i: asked.add(i) or get(i)
    FixedSizeOptions.from_dataset(dataset, 3, sample_limit=2)
    assert asked == {0, 1}

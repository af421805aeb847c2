"""What attributes count and belong to, as PyG means them."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import cumsum

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore, Level, unpad
from popgeo.data.pyg_counts import JoinedColumn, _count_edges, _count_nodes, _per_outer_row, infer_level
from tests.support.graphs import graph, hetero_graph, same

OPTIONS = FixedSizeOptions(12, 12, 4)


def test_levels_of_the_usual_attributes():
    store = FlatStore.from_dataset([graph(3, 4), graph(2, 1)])
    levels = {attribute.name: attribute.axis.level.value for attribute in store.attributes}
    assert [name for name, level in levels.items() if level == "node"] == ["x", "pos", "z", "train_mask"]
    assert [name for name, level in levels.items() if level == "edge"] == ["edge_index", "edge_attr"]
    assert [name for name, level in levels.items() if level == "graph"] == [
        "y",
        "root_index",
        "charge",
        "weight",
        "name",
    ]


@pytest.mark.parametrize(
    "y",
    [
        pytest.param(torch.tensor(2.0), id="0-d"),
        pytest.param(torch.arange(5.0), id="five tasks in 1-d"),
        pytest.param(torch.arange(5.0)[None], id="five tasks in 2-d"),
    ],
)
def test_labels_of_every_shape_belong_to_the_graph(y, native):
    graphs = [Data(x=torch.ones(n, 1), y=y) for n in (5, 3)]
    store = FlatStore.from_dataset(graphs)
    assert store.level("y") is Level.GRAPH
    batch = FixedSizeCollater(OPTIONS, add_masks_to_batch=True)(graphs)
    assert batch.y.shape[0] == 4 * max(1, y.shape[0] if y.dim() else 1)
    assert same(unpad(batch)[0].y, y if y.dim() else y[None])


def test_labels_of_single_node_graphs_belong_to_the_graph():
    assert FlatStore.from_dataset([Data(x=torch.ones(1, 2), y=torch.ones(1))] * 2).level("y") is Level.GRAPH


def test_labels_of_nodes_belong_to_nodes():
    assert FlatStore.from_dataset([Data(x=torch.ones(n, 2), y=torch.ones(n)) for n in (1, 3)]).level("y") is Level.NODE


def test_an_attribute_that_has_one_graphs_node_count_by_chance_stays_with_the_graph():
    graphs = [Data(x=torch.ones(n, 1), fingerprint=torch.ones(4)) for n in (4, 3)]
    assert FlatStore.from_dataset(graphs).level("fingerprint") is Level.GRAPH


def test_levels_may_be_stated():
    graphs = [Data(x=torch.ones(3, 1), tasks=torch.arange(3.0))] * 2
    assert FlatStore.from_dataset(graphs).level("tasks") is Level.NODE
    assert FlatStore.from_dataset(graphs, levels={"tasks": "graph"}).level("tasks") is Level.GRAPH
    with pytest.raises(ValueError, match=r"Graph 0 has 3 rows in 'tasks' and 0 edges"):
        FlatStore.from_dataset(graphs, levels={"tasks": "edge"})
    with pytest.raises(ValueError, match="'many' is not a valid Level"):
        FlatStore.from_dataset(graphs, levels={"tasks": "many"})
    assert len(FlatStore.from_dataset([Data(a=torch.ones(3))], levels={"a": "node"}).sizes) == 1


def test_nodes_are_counted_as_pyg_counts_them():
    by_edges = Data(edge_index=torch.tensor([[0, 4], [1, 2]]))
    with pytest.warns(UserWarning, match="by edges alone"):
        assert FlatStore.from_dataset([by_edges]).sizes.tolist() == [[5, 2]]
    assert FlatStore.from_dataset([Data(num_nodes=7)]).sizes.tolist() == [[7, 0]]
    assert FlatStore.from_dataset([Data(z=torch.ones(3, dtype=torch.long))]).sizes.tolist() == [[3, 0]]


def test_a_type_without_features_states_its_size(native):
    batch = FixedSizeCollater(OPTIONS, add_masks_to_batch=True)([hetero_graph(2, 3, 1, 1), hetero_graph(1, 2, 0, 2)])
    assert batch["b"].num_nodes == 12
    assert [graph["b"].num_nodes for graph in unpad(batch)] == [3, 2]
    data = HeteroData()
    data["a"].y = torch.ones(2)
    with pytest.raises(ValueError, match="each graph's 'a' has the attributes"):
        FlatStore.from_dataset([data])


def test_an_attribute_that_has_node_in_its_name_counts_the_nodes():
    assert FlatStore.from_dataset([Data(node_weight=torch.ones(4, 2))]).sizes.tolist() == [[4, 0]]


TWO, FOUR, ONES = torch.tensor([2, 3]), torch.tensor([4, 5]), torch.tensor([1, 1])


@pytest.mark.parametrize(
    ("name", "rows", "nodes", "edges", "level"),
    [
        ("x", TWO, TWO, FOUR, Level.NODE),
        ("foo", TWO, TWO, FOUR, Level.NODE),
        ("foo", FOUR, TWO, FOUR, Level.EDGE),
        ("edge_attr", TWO, TWO, TWO, Level.EDGE),
        ("e_id", TWO, TWO, TWO, Level.EDGE),
        ("x", TWO, TWO, TWO, Level.NODE),
        ("foo", TWO, TWO, TWO, Level.NODE),
        ("edge_foo", TWO, TWO, FOUR, Level.NODE),
        ("x", FOUR, TWO, FOUR, Level.EDGE),
        ("y", ONES, ONES, ONES, Level.GRAPH),
        ("x", ONES, ONES, TWO, Level.NODE),
        ("n_nodes", ONES, ONES, TWO, Level.NODE),
        ("edge_foo", ONES, TWO, ONES, Level.EDGE),
        ("e_id", ONES, TWO, ONES, Level.EDGE),
        ("x", ONES, TWO, FOUR, Level.GRAPH),
        ("foo", torch.tensor([7, 2]), TWO, FOUR, Level.GRAPH),
        ("foo", TWO, None, None, Level.GRAPH),
        ("edge_attr", TWO, None, None, Level.GRAPH),
        ("x", TWO, None, TWO, Level.EDGE),
    ],
)
def test_a_level_follows_from_the_name_where_the_counts_agree_and_else_from_the_counts(name, rows, nodes, edges, level):
    counts = {Level.NODE: nodes, Level.EDGE: edges}
    like = [kind for kind, of_kind in counts.items() if of_kind is not None and torch.equal(rows, of_kind)]
    assert infer_level(name, rows, like) is level


def column(name, counts, values=None):
    counts = torch.tensor(counts)
    return JoinedColumn(
        name=name, values=torch.zeros(int(counts.sum())) if values is None else values, slices=cumsum(counts)
    )


LINKS = column("edge_index", [1, 0, 1], torch.tensor([[0, 2], [1, 3]]))  # of node 0 with 1, no edge, and 2 with 3
FACE = column("face", [1, 0, 1], torch.tensor([[0, 2], [1, 3], [4, 0]]))
NAMED = [column("other", [9, 9, 9])]


@pytest.mark.parametrize(
    ("columns", "levels", "counts"),
    [
        *(([LINKS, *NAMED, column(n, [1, 2, 3])], {}, [1, 2, 3]) for n in ("x", "feat", "pos", "node_type", "n_id")),
        ([LINKS, column("of_nodes", [1, 2, 3])], {}, [1, 2, 3]),
        ([column("x", [1, 2, 3]), *NAMED], {"other": Level.NODE}, [9, 9, 9]),
        ([column("x", [1, 2, 3]), column("pos", [4, 4, 4])], {(None, "x"): Level.GRAPH}, [4, 4, 4]),
        ([column("node_y", [1, 2, 3]), column("z", [4, 4, 4])], {"node_y": Level.GRAPH}, [4, 4, 4]),
        ([JoinedColumn(name="x", values=["a", "b", "c"]), column("pos", [4, 4, 4])], {}, [4, 4, 4]),
        ([FACE, LINKS, column("z", [7, 7, 7])], {}, [7, 7, 7]),
        ([column("z", [7, 7, 7])], {}, [7, 7, 7]),
    ],
)
def test_nodes_are_counted_by_the_first_attribute_that_knows(columns, levels, counts):
    assert _count_nodes(None, columns, levels).tolist() == counts


@pytest.mark.parametrize(("links", "counts"), [(LINKS, [2, 0, 4]), (FACE, [5, 0, 4])])
def test_edges_count_nodes_with_a_warning_and_never_against_the_features(links, counts):
    with pytest.warns(UserWarning, match="Nodes are counted by edges alone"):
        assert _count_nodes(None, [links, column("y", [1, 1, 1])], {}).tolist() == counts
    with pytest.raises(ValueError, match="of graph 0, which has 9 rows in 'other'"):
        _count_nodes(None, [links, *NAMED], {})


def test_links_do_not_count_the_nodes_of_a_type():
    with pytest.raises(ValueError, match="each graph's 'a' has the attributes"):
        _count_nodes("a", [LINKS], {})


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (("edge_weight", "edge_index"), [2, 2]), (("edge_foo", "edge_attr"), [2, 2]), (("e_id", "edge_type"), [2, 2]),
        (("y", "edge_foo"), [2, 2]), (("edge_foo", "e_id"), [2, 2]), (("y", "x"), [0, 0]),
    ],
)  # fmt: skip
def test_edges_are_counted_by_the_attribute_that_knows_best(names, counts):
    assert _count_edges([column(names[0], [1, 1]), column(names[1], [2, 2])], 2).tolist() == counts


@pytest.mark.parametrize(
    ("increments", "shape", "dim", "expected"),
    [
        (torch.tensor([3, 4]), (2, 5), 1, [[3], [4]]),
        (torch.tensor([[[3]], [[4]]]), (2, 5), 1, [[3], [4]]),
        (torch.tensor([[[3], [5]], [[4], [6]]]), (2, 5), 1, [[3, 5], [4, 6]]),
        (torch.tensor([[[1], [2]], [[3], [4]]]), (3, 2, 5), 2, [[1, 2] * 3, [3, 4] * 3]),  # the same for the outermost
    ],
)
def test_increments_are_one_number_for_each_row_before_the_joined_dimension(increments, shape, dim, expected):
    assert _per_outer_row("index", increments, torch.zeros(shape), dim).tolist() == expected


def test_increments_along_the_joined_dimension_are_refused():
    with pytest.raises(ValueError, match="varies along or behind"):
        _per_outer_row("index", torch.tensor([[1, 2]]), torch.zeros(3, 2), 1)

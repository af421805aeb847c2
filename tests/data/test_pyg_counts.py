"""What attributes count and belong to, as PyG means them."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore, Level, unpad
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
    with pytest.raises(ValueError, match=r"says 'tasks': 'edge', but in graph 0 it has 3 rows and there are 0 edges"):
        FlatStore.from_dataset(graphs, levels={"tasks": "edge"})
    with pytest.raises(ValueError, match="'many' is not a valid Level"):
        FlatStore.from_dataset(graphs, levels={"tasks": "many"})
    assert len(FlatStore.from_dataset([Data(a=torch.ones(3))], levels={"a": "node"}).sizes) == 1


def test_nodes_are_counted_as_pyg_counts_them():
    by_edges = Data(edge_index=torch.tensor([[0, 4], [1, 2]]))
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

"""Wrong datasets, sizes and numbers of neighbors are refused with the right ones in the message."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from popgeo import FixedSizeDataLoader, FixedSizeOptions
from popgeo.data import FixedSizeCollater, FlatStore, write
from popgeo.loader import FixedSizeLinkLoader, FixedSizeNeighborLoader
from tests.support.large_graphs import random_graph
from tests.support.loaders import InMemory

EDGE = torch.tensor([[0], [1]])
SIZES = {"num_nodes": 9, "num_edges": 9, "num_graphs": 3}


def graphs(**attributes) -> list[Data]:
    return [Data(x=torch.ones(3, 1), edge_index=EDGE, **attributes) for _ in range(3)]


@pytest.mark.parametrize(("name", "value"), [("batch", torch.tensor([0, 1, 1])), ("ptr", torch.tensor([0, 1, 3]))])
def test_a_graph_s_own_batch_is_refused_and_can_be_left_out(name, value, tmp_path):
    own = graphs(**{name: value})
    for make in (
        lambda: FixedSizeDataLoader(own, 3),
        lambda: FixedSizeDataLoader(InMemory(own) if name == "batch" else own, 3),  # PyG's collate drops `ptr`
        lambda: FixedSizeDataLoader([one.to_dict() for one in own], 3),
        lambda: FixedSizeCollater(FixedSizeOptions(12, 9, 4))(own),
        lambda: write(own, tmp_path / "store"),
    ):
        with pytest.raises(
            ValueError, match=f"Graph 0 has an attribute '{name}', which every batch makes.*exclude_keys="
        ):
            make()
    batch = next(iter(FixedSizeDataLoader(own, 4, exclude_keys=[name])))
    assert batch.batch[:9].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    plain = graphs(batch=torch.zeros(3, dtype=torch.long), ptr=torch.tensor([0, 3]))  # they say nothing new
    assert torch.equal(next(iter(FixedSizeDataLoader(plain, 4))).batch, batch.batch)


@pytest.mark.parametrize("count", [10**20, 2**62, np.int64(2**62)])
def test_more_nodes_than_any_graph_has_are_refused(count):
    with pytest.raises(ValueError, match=r"Graph 1 has num_nodes=.* from 0 to"):
        FlatStore.from_dataset([Data(edge_index=EDGE, num_nodes=2), Data(edge_index=EDGE, num_nodes=count)])


@pytest.mark.parametrize(
    "hops", [[np.int64(3), np.int32(2)], np.array([3, 2]), torch.tensor([3, 2]), (torch.tensor(3), 2)], ids=repr
)
def test_numbers_of_neighbors_may_be_numpy_s(hops):
    graph = random_graph()
    for kind, how in ((FixedSizeNeighborLoader, {}), (FixedSizeLinkLoader, {"neg_sampling": None})):
        found, plain = (next(iter(kind(graph, num_neighbors=n, batch_size=8, seed=1, **how))) for n in (hops, [3, 2]))
        assert torch.equal(found.edge_index, plain.edge_index)


@pytest.mark.parametrize("hops", [[True], [np.float64(3)], [np.int64(-2)], ["3"]])
def test_what_is_no_number_of_neighbors_is_refused(hops):
    with pytest.raises(ValueError, match="each is 0 or more, or -1 for all"):
        FixedSizeNeighborLoader(random_graph(), num_neighbors=hops, batch_size=8)


def test_a_type_of_nodes_that_edges_name_and_nothing_sets_is_named():
    data = HeteroData()
    data["a"].x, data["a", "to", "b"].edge_index = torch.ones(3, 1), EDGE
    for make in (lambda: FixedSizeDataLoader([data] * 3, 3), lambda: FixedSizeNeighborLoader(data, [2], "a")):
        with pytest.raises(ValueError, match=r"nodes of type 'b', and the graphs have no such nodes.*num_nodes"):
            make()
    data["b"].num_nodes = 2
    assert next(iter(FixedSizeDataLoader([data] * 3, 3)))["b"].num_nodes == 5


@pytest.mark.parametrize("sizes", [SIZES, (9, 9, 3), 9])
def test_sizes_that_are_no_options_are_refused(sizes):
    for make in (lambda: FixedSizeDataLoader(graphs(), fixed_size_options=sizes), lambda: FixedSizeCollater(sizes)):
        with pytest.raises(ValueError, match=r"fixed_size_options is a .*; pass popgeo.FixedSizeOptions\(num_nodes="):
            make()


@pytest.mark.parametrize("dataset", [{"train": [1]}, {"x": torch.ones(3, 1)}, {}])
def test_a_dictionary_is_no_dataset(dataset):
    for make in (FixedSizeDataLoader, FixedSizeOptions.from_dataset, FixedSizeOptions.tune):
        with pytest.raises(ValueError, match=r"The dataset is a dict with the keys \[.*; pass a list of graphs"):
            make(dataset, 3)


def test_arguments_that_are_missing_or_called_otherwise_are_named():
    with pytest.raises(TypeError, match=r"^FixedSizeOptions.from_dataset\(\) missing .* 'batch_size'"):
        FixedSizeOptions.from_dataset(graphs())
    with pytest.raises(TypeError, match=r"^FixedSizeOptions.tune\(\) missing .* 'target_graphs'"):
        FixedSizeOptions.tune(graphs())
    with pytest.raises(TypeError, match=r"no argument 'num_graphs'\. Did you mean 'batch_size'"):
        FixedSizeDataLoader(graphs(), num_graphs=9)


def test_pairs_of_graphs_are_led_to_types_of_nodes():
    pair = Data(x_s=torch.ones(3, 2), edge_index_s=EDGE, x_t=torch.ones(4, 2), edge_index_t=EDGE)
    with pytest.raises(ValueError, match="For pairs of graphs make HeteroData"):
        FixedSizeDataLoader([pair, pair], 3)
